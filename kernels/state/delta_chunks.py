# mypy: disable-error-code="no-untyped-def"
"""Many tokens of the gated delta rule, a chunk at a time.

What the tokens of a chunk are to each other does not depend on the state before it: all chunks of
a row are looked at side by side. Then the state goes along the row, from chunk to chunk. Products
are IEEE float32: what is solved and what is asked of states loses too much in TF32.

Chunks end at multiples of a divisor of pages from the sequence's first token on, so a state is
the same, bit by bit, wherever steps cut the sequence along that grid.

Legend: T tokens of the step, X channels, V value heads, E value dim, C tokens of a chunk.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from raydix.kernels.attention.rows import DecodeRows
from raydix.kernels.state.delta_form import NORM_EPS, DeltaForm
from raydix.kernels.state.delta_inputs import DeltaInputs
from raydix.kernels.state.state_pages import StatePages

BLOCK = 16
"""The tokens of a chunk, the dims of keys in one product, and the columns of a state that a program
takes along a row. It divides `CHUNK_TOKENS`, so what ends on the twin's grid ends on this one.

Products of IEEE float32 with longer sides do not fit into the registers of Hopper.
"""
_MIN_WORKERS = 32
"""The programs that look at the chunks of one row and head, if there may be so many chunks."""


def run_chunks(
    mixed_TX: Tensor,
    inputs: DeltaInputs,
    pages: StatePages,
    rows: DecodeRows,
    form: DeltaForm,
    out_TVE: Tensor,
) -> None:
    """Change the states of rows of several tokens and ask them, into their tokens of `out_TVE`.

    `mixed_TX`: what `convolve` leaves. Shapes are those that `gated_delta` has checked.
    """
    num_tokens, num_rows = len(mixed_TX), len(rows.rows_B)
    grid_tokens = min(BLOCK, pages.page_size)
    shape = (num_tokens, form.num_value_heads, BLOCK)
    inverses_TVC, scores_TVC = (mixed_TX.new_empty(shape, dtype=torch.float32) for _ in range(2))
    columns = (rows.tokens_B, rows.num_tokens_B, rows.context_tokens_B)
    strides = (mixed_TX.stride(0), inputs.decays_TV.stride(0), inputs.betas_TV.stride(0))
    sizes = {
        "KEY_HEADS": form.num_key_heads,
        "PER_KEY": form.values_per_key,
        "KEY_DIM": form.key_dim,
        "EPS": NORM_EPS,
        "GRID": grid_tokens,
        "BLOCK": BLOCK,
        "PARTS": triton.next_power_of_2(triton.cdiv(form.key_dim, BLOCK)),
    }

    # As many programs as the chunks of rows of equal length would need. Of the rows of a captured
    # step most may be empty, so that the others have more chunks.
    workers = triton.cdiv(num_tokens, num_rows * grid_tokens) + 1
    workers = max(workers, min(_MIN_WORKERS, triton.cdiv(num_tokens, grid_tokens) + 1))
    _relate[(form.num_value_heads, workers, num_rows)](
        mixed_TX,
        inputs.decays_TV,
        inputs.betas_TV,
        *columns,
        inverses_TVC,
        scores_TVC,
        *strides,
        form.key_dim**-0.5,
        **sizes,
        num_warps=4,
    )
    num_slices = triton.cdiv(form.value_dim, BLOCK)
    _carry[(num_slices, form.num_value_heads, num_rows)](
        mixed_TX,
        inputs.decays_TV,
        inputs.betas_TV,
        inverses_TVC,
        scores_TVC,
        pages.pool_PLHZ,
        pages.block_tables_RN,
        rows.rows_B,
        *columns,
        out_TVE,
        *strides,
        pages.pool_PLHZ.stride(0),
        pages.layer_offset,
        pages.block_tables_RN.stride(0),
        form.key_dim**-0.5,
        **sizes,
        VALUE_DIM=form.value_dim,
        HEAD=form.head_elements,
        PAGE=pages.page_size,
        num_warps=4,
    )


@triton.jit
def _normed(ptr, is_wanted, EPS: tl.constexpr):
    """Vectors [PARTS, BLOCK, BLOCK] of length 1, float32; zeros where nothing is wanted."""
    x = tl.load(ptr, mask=is_wanted, other=0.0).to(tl.float32)
    return x * tl.rsqrt(tl.sum(tl.sum(x * x, 2), 0) + EPS)[None, :, None]


@triton.jit
def _times(left, right):
    """The product of matrices that lie in parts along the dimension that is summed."""
    return tl.sum(tl.dot(left, right, input_precision="ieee"), 0)


@triton.jit
def _relate(
    mixed_ptr,
    decays_ptr,
    betas_ptr,
    tokens_ptr,
    counts_ptr,
    contexts_ptr,
    inverses_ptr,
    scores_ptr,
    mixed_stride,
    decay_stride,
    beta_stride,
    scale,
    KEY_HEADS: tl.constexpr,
    PER_KEY: tl.constexpr,
    KEY_DIM: tl.constexpr,
    EPS: tl.constexpr,
    GRID: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Some chunks of one row, for one value head.

    Of each chunk: the inverse of what its tokens' additions take from those of later ones, and what
    its queries get of them.
    """
    head = tl.program_id(0)
    row = tl.program_id(2)
    context = tl.load(contexts_ptr + row).to(tl.int32)
    start = context - tl.load(counts_ptr + row).to(tl.int32)
    if context == 0:
        return
    first_token = tl.load(tokens_ptr + row).to(tl.int64)
    at = tl.arange(0, BLOCK)
    key = tl.arange(0, PARTS)[:, None, None] * BLOCK + tl.arange(0, BLOCK)[None, None, :]

    for chunk in range(
        start // GRID + tl.program_id(1), tl.cdiv(context, GRID), tl.num_programs(1)
    ):
        begin = tl.maximum(chunk * GRID, start)
        count = tl.minimum(chunk * GRID + GRID, context) - begin
        token = first_token + (begin - start) + at
        is_token = at < count
        is_vector = is_token[None, :, None] & (key < KEY_DIM)
        q_ptr = mixed_ptr + token[None, :, None] * mixed_stride + head // PER_KEY * KEY_DIM + key
        q = _normed(q_ptr, is_vector, EPS) * scale
        k = _normed(q_ptr + KEY_HEADS * KEY_DIM, is_vector, EPS)
        decay = tl.load(decays_ptr + token * decay_stride + head, mask=is_token, other=0.0)
        beta = tl.load(betas_ptr + token * beta_stride + head, mask=is_token, other=0.0)

        sums = tl.cumsum(decay, 0)
        gaps = sums[:, None] - sums[None, :]
        is_seen = at[:, None] >= at[None, :]
        k_turned = tl.permute(k, (0, 2, 1))
        scores = _times(q, k_turned)
        scores *= tl.exp(tl.where(is_seen, gaps, float("-inf")))

        # Column i has what token i's addition loses to each addition before it.
        lost = _times(k, k_turned) * beta[None, :]
        lost *= tl.exp(tl.where(at[:, None] < at[None, :], -gaps, float("-inf")))
        inverse = tl.where(at[:, None] == at[None, :], 1.0, 0.0)
        for i in range(1, count):
            lost_i = tl.sum(tl.where(at[None, :] == i, lost, 0.0), 1)
            before = tl.sum(lost_i[:, None] * inverse, 0)
            inverse = tl.where(at[:, None] == i, inverse - before[None, :], inverse)

        tile = (token[:, None] * (KEY_HEADS * PER_KEY) + head) * BLOCK + at[None, :]
        tl.store(inverses_ptr + tile, inverse, mask=is_token[:, None])
        tl.store(scores_ptr + tile, scores, mask=is_token[:, None])


@triton.jit(do_not_specialize=["table_stride"])
def _carry(
    mixed_ptr,
    decays_ptr,
    betas_ptr,
    inverses_ptr,
    scores_ptr,
    pool_ptr,
    tables_ptr,
    rows_ptr,
    tokens_ptr,
    counts_ptr,
    contexts_ptr,
    out_ptr,
    mixed_stride,
    decay_stride,
    beta_stride,
    page_stride,
    layer_offset,
    table_stride,
    scale,
    KEY_HEADS: tl.constexpr,
    PER_KEY: tl.constexpr,
    KEY_DIM: tl.constexpr,
    EPS: tl.constexpr,
    GRID: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    HEAD: tl.constexpr,
    PAGE: tl.constexpr,
):
    """Some columns of the state of one value head, along one row."""
    head = tl.program_id(1)
    row = tl.program_id(2)
    context = tl.load(contexts_ptr + row).to(tl.int32)
    start = context - tl.load(counts_ptr + row).to(tl.int32)
    if context == 0:
        return
    first_token = tl.load(tokens_ptr + row).to(tl.int64)
    table_ptr = tables_ptr + tl.load(rows_ptr + row).to(tl.int64) * table_stride
    at = tl.arange(0, BLOCK)
    key = tl.arange(0, PARTS)[:, None, None] * BLOCK + tl.arange(0, BLOCK)[None, None, :]
    value = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_value = value < VALUE_DIM

    state_key = tl.permute(key, (0, 2, 1))
    is_state = (state_key < KEY_DIM) & is_value[None, None, :]
    state = head // PER_KEY * HEAD + head % PER_KEY * (KEY_DIM * VALUE_DIM)
    state_ptr = (pool_ptr + layer_offset + state) + state_key * VALUE_DIM + value[None, None, :]
    page = tl.load(table_ptr + tl.maximum(start - 1, 0) // PAGE).to(tl.int64)
    matrix = tl.load(state_ptr + page * page_stride, mask=is_state & (start > 0), other=0.0)

    for chunk in range(start // GRID, tl.cdiv(context, GRID)):
        begin = tl.maximum(chunk * GRID, start)
        end = tl.minimum(chunk * GRID + GRID, context)
        token = first_token + (begin - start) + at
        is_token = at < end - begin
        is_vector = is_token[None, :, None] & (key < KEY_DIM)
        token_ptr = mixed_ptr + token[:, None] * mixed_stride
        q_ptr = token_ptr[None, :, :] + head // PER_KEY * KEY_DIM + key
        v_ptr = token_ptr + 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM + value[None, :]
        is_out = is_token[:, None] & is_value[None, :]
        v = tl.load(v_ptr, mask=is_out, other=0.0).to(tl.float32)
        decay = tl.load(decays_ptr + token * decay_stride + head, mask=is_token, other=0.0)
        beta = tl.load(betas_ptr + token * beta_stride + head, mask=is_token, other=0.0)
        tile = (token[:, None] * (KEY_HEADS * PER_KEY) + head) * BLOCK + at[None, :]
        inverse = tl.load(inverses_ptr + tile, mask=is_token[:, None], other=0.0)
        scores = tl.load(scores_ptr + tile, mask=is_token[:, None], other=0.0)

        sums = tl.cumsum(decay, 0)
        whole = tl.sum(decay, 0)
        k = _normed(q_ptr + KEY_HEADS * KEY_DIM, is_vector, EPS)
        known = _times(k * tl.exp(sums)[None, :, None], matrix)
        added = tl.dot(inverse, (v - known) * beta[:, None], input_precision="ieee")
        q = _normed(q_ptr, is_vector, EPS) * scale
        out = _times(q * tl.exp(sums)[None, :, None], matrix)
        out = tl.dot(scores, added, out, input_precision="ieee")
        out_row_ptr = out_ptr + (token * (KEY_HEADS * PER_KEY) + head) * VALUE_DIM
        tl.store(
            out_row_ptr[:, None] + value[None, :], out.to(out_ptr.dtype.element_ty), mask=is_out
        )

        later = tl.permute(k * tl.exp(whole - sums)[None, :, None], (0, 2, 1))
        added = tl.broadcast_to(added[None, :, :], (PARTS, BLOCK, BLOCK))
        matrix = tl.dot(later, added, matrix * tl.exp(whole), input_precision="ieee")
        if (end % PAGE == 0) | (end == context):
            page = tl.load(table_ptr + (end - 1) // PAGE).to(tl.int64)
            # It may be the page that was read, and of a small state several threads read a number.
            tl.debug_barrier()
            tl.store(state_ptr + page * page_stride, matrix, mask=is_state & (page > 0))
