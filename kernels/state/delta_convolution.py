# mypy: disable-error-code="no-untyped-def"
"""The causal convolution of rows' channels, and the last inputs of it that pages keep.

A program has some channels of one row, from its first token to its last, and is the only one that
touches their inputs in the pages of the row: the page that it reads may be one that it writes.

Legend: T tokens of the step, X channels, P pages, L layers of the KV group, H key heads, Z numbers
of a head's state, R rows of the block tables, N pages of a block table.
"""

import triton
import triton.language as tl
from torch import Tensor

from raydix.kernels.attention.rows import DecodeRows
from raydix.kernels.state.delta_form import DeltaForm
from raydix.kernels.state.delta_inputs import DeltaInputs
from raydix.kernels.state.state_pages import StatePages

STEP_BLOCK = (1, 128)
"""Tokens and channels at a time, of rows of one token."""
PROMPT_BLOCK = (64, 32)
"""The same of other rows: few channels, so that one row makes many programs."""


def convolve(
    inputs: DeltaInputs, pages: StatePages, rows: DecodeRows, form: DeltaForm, mixed_TX: Tensor
) -> None:
    """Convolve the rows' channels, apply SiLU, and keep their last inputs in the rows' pages.

    `mixed_TX` takes the result, rounded after the convolution and after SiLU; tokens of no row are
    left alone. Shapes are those that `gated_delta` has checked.
    """
    block_tokens, block_channels = STEP_BLOCK if rows.num_tokens_B is None else PROMPT_BLOCK
    _convolve[(triton.cdiv(form.num_channels, block_channels), len(rows.rows_B))](
        inputs.channels_TX,
        inputs.taps_XK,
        pages.pool_PLHZ,
        pages.block_tables_RN,
        rows.rows_B,
        rows.tokens_B,
        rows.num_tokens_B,
        rows.context_tokens_B,
        mixed_TX,
        inputs.channels_TX.stride(0),
        mixed_TX.stride(0),
        pages.pool_PLHZ.stride(0),
        pages.layer_offset,
        pages.block_tables_RN.stride(0),
        KEY_HEADS=form.num_key_heads,
        KEY_DIM=form.key_dim,
        VALUES=form.values_per_key * form.value_dim,
        MATRICES=form.matrix_elements,
        HEAD=form.head_elements,
        TAPS=form.num_taps,
        PAGE=pages.page_size,
        BLOCK_TOKENS=block_tokens,
        BLOCK_CHANNELS=block_channels,
        BLOCK_PAST=triton.next_power_of_2(form.num_taps - 1),
        num_warps=4,
    )


@triton.jit
def _place_in_page(
    channel,
    KEY_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUES: tl.constexpr,
    MATRICES: tl.constexpr,
    HEAD: tl.constexpr,
):
    """Where a layer's state has the oldest input of each channel: behind its key head's matrices,
    where the head's query lies, then its key, then its values."""
    KEYS: tl.constexpr = KEY_HEADS * KEY_DIM
    is_value = channel >= 2 * KEYS
    index = tl.where(is_value, channel - 2 * KEYS, channel % KEYS)
    width = tl.where(is_value, VALUES, KEY_DIM)
    ahead = tl.where(is_value, 2 * KEY_DIM, channel // KEYS * KEY_DIM)
    return index // width * HEAD + MATRICES + ahead + index % width


@triton.jit(do_not_specialize=["table_stride"])
def _convolve(
    channels_ptr,
    taps_ptr,
    pool_ptr,
    tables_ptr,
    rows_ptr,
    tokens_ptr,
    counts_ptr,
    contexts_ptr,
    mixed_ptr,
    token_stride,
    mixed_stride,
    page_stride,
    layer_offset,
    table_stride,
    KEY_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUES: tl.constexpr,
    MATRICES: tl.constexpr,
    HEAD: tl.constexpr,
    TAPS: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
    BLOCK_PAST: tl.constexpr,
):
    """Some channels of one row."""
    row = tl.program_id(1)
    context = tl.load(contexts_ptr + row).to(tl.int32)
    if context == 0:
        return
    count = 1 if counts_ptr is None else tl.load(counts_ptr + row).to(tl.int32)
    start = context - count
    table_ptr = tables_ptr + tl.load(rows_ptr + row).to(tl.int64) * table_stride

    channel = tl.program_id(0) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    is_channel = channel < KEY_HEADS * (2 * KEY_DIM + VALUES)
    place = _place_in_page(channel, KEY_HEADS, KEY_DIM, VALUES, MATRICES, HEAD)
    first_token = tl.load(tokens_ptr + row).to(tl.int64)
    first_ptr = channels_ptr + first_token * token_stride + channel
    out_ptr = mixed_ptr + first_token * mixed_stride + channel
    state_ptr = pool_ptr + layer_offset + place
    before = tl.load(table_ptr + tl.maximum(start - 1, 0) // PAGE).to(tl.int64)
    past_ptr = state_ptr + before * page_stride

    for begin in range(0, count, BLOCK_TOKENS):
        token = begin + tl.arange(0, BLOCK_TOKENS)
        is_token = (token < count)[:, None] & is_channel[None, :]
        total = tl.zeros([BLOCK_TOKENS, BLOCK_CHANNELS], tl.float32)
        for tap in tl.static_range(TAPS):
            weight = tl.load(taps_ptr + channel * TAPS + tap, mask=is_channel, other=0.0)
            raw = _raw(
                first_ptr,
                past_ptr,
                token + (tap - TAPS + 1),
                is_token,
                start,
                token_stride,
                2 * KEY_DIM + VALUES,
                TAPS,
            )
            total += weight.to(tl.float32)[None, :] * raw
        # Rounded where the twin rounds.
        total = total.to(mixed_ptr.dtype.element_ty).to(tl.float32)
        mixed = (total / (1.0 + tl.exp(-total))).to(mixed_ptr.dtype.element_ty)
        tl.store(
            out_ptr[None, :] + token.to(tl.int64)[:, None] * mixed_stride, mixed, mask=is_token
        )

    # The page of the token before is the first of these, if it is one of them: it is read until
    # then.
    last_page = (context - 1) // PAGE
    for index in range(last_page - start // PAGE + 1):
        page = tl.load(table_ptr + last_page - index).to(tl.int64)
        if page > 0:
            end = tl.minimum((last_page - index + 1) * PAGE, context)
            kept_token = tl.arange(0, BLOCK_PAST)
            is_kept = (kept_token < TAPS - 1)[:, None] & is_channel[None, :]
            raw = _raw(
                first_ptr,
                past_ptr,
                end - start - (TAPS - 1) + kept_token,
                is_kept,
                start,
                token_stride,
                2 * KEY_DIM + VALUES,
                TAPS,
            )
            # What other threads read of this page must be read by now.
            tl.debug_barrier()
            kept_ptr = state_ptr + page * page_stride
            tl.store(
                kept_ptr[None, :] + kept_token[:, None] * (2 * KEY_DIM + VALUES), raw, mask=is_kept
            )


@triton.jit
def _raw(
    first_ptr,
    past_ptr,
    token,
    is_wanted,
    start,
    token_stride,
    WIDTH: tl.constexpr,
    TAPS: tl.constexpr,
):
    """The inputs of tokens, which are counted from the row's first: of earlier ones its page has
    the last, and those before the sequence are zeros."""
    is_new = (token >= 0)[:, None]
    new = tl.load(
        first_ptr[None, :] + token.to(tl.int64)[:, None] * token_stride,
        mask=is_wanted & is_new,
        other=0.0,
    )
    old = tl.load(
        past_ptr[None, :] + (token + (TAPS - 1))[:, None] * WIDTH,
        mask=is_wanted & (token < 0)[:, None] & (start > 0),
        other=0.0,
    )
    return tl.where(is_new, new, old.to(new.dtype)).to(tl.float32)
