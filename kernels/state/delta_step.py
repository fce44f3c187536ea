# mypy: disable-error-code="no-untyped-def"
"""One token of the gated delta rule: each number of a state is read once and written once.

Legend: T tokens of the step, X channels, V value heads, E value dim.
"""

import triton
import triton.language as tl
from torch import Tensor

from raydix.kernels.attention.rows import DecodeRows
from raydix.kernels.state.delta_form import NORM_EPS, DeltaForm
from raydix.kernels.state.delta_inputs import DeltaInputs
from raydix.kernels.state.state_pages import StatePages

BLOCK_VALUES = 32
"""The columns of a state that a program has: a line of memory of each key dim."""


def step_states(
    mixed_TX: Tensor,
    inputs: DeltaInputs,
    pages: StatePages,
    rows: DecodeRows,
    form: DeltaForm,
    out_TVE: Tensor,
) -> None:
    """Change the states of rows of one token and ask them, into their tokens of `out_TVE`.

    `mixed_TX`: what `convolve` leaves. Shapes are those that `gated_delta` has checked.
    """
    block_values = min(BLOCK_VALUES, triton.next_power_of_2(form.value_dim))
    num_slices = triton.cdiv(form.value_dim, block_values)
    _step[(num_slices, form.num_value_heads, len(rows.rows_B))](
        mixed_TX,
        inputs.decays_TV,
        inputs.betas_TV,
        pages.pool_PLHZ,
        pages.block_tables_RN,
        rows.rows_B,
        rows.tokens_B,
        rows.context_tokens_B,
        out_TVE,
        mixed_TX.stride(0),
        inputs.decays_TV.stride(0),
        inputs.betas_TV.stride(0),
        pages.pool_PLHZ.stride(0),
        pages.layer_offset,
        pages.block_tables_RN.stride(0),
        form.key_dim**-0.5,
        KEY_HEADS=form.num_key_heads,
        PER_KEY=form.values_per_key,
        KEY_DIM=form.key_dim,
        VALUE_DIM=form.value_dim,
        HEAD=form.head_elements,
        PAGE=pages.page_size,
        EPS=NORM_EPS,
        BLOCK_KEY=triton.next_power_of_2(form.key_dim),
        BLOCK_VALUES=block_values,
        num_warps=4,
    )


@triton.jit(do_not_specialize=["table_stride"])
def _step(
    mixed_ptr,
    decays_ptr,
    betas_ptr,
    pool_ptr,
    tables_ptr,
    rows_ptr,
    tokens_ptr,
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
    VALUE_DIM: tl.constexpr,
    HEAD: tl.constexpr,
    PAGE: tl.constexpr,
    EPS: tl.constexpr,
    BLOCK_KEY: tl.constexpr,
    BLOCK_VALUES: tl.constexpr,
):
    """Some columns of the state of one value head, for one row."""
    head = tl.program_id(1)
    row = tl.program_id(2)
    context = tl.load(contexts_ptr + row).to(tl.int32)
    if context == 0:
        return
    token = tl.load(tokens_ptr + row).to(tl.int64)
    table_ptr = tables_ptr + tl.load(rows_ptr + row).to(tl.int64) * table_stride
    before = tl.load(table_ptr + tl.maximum(context - 2, 0) // PAGE).to(tl.int64)
    own = tl.load(table_ptr + (context - 1) // PAGE).to(tl.int64)

    key = tl.arange(0, BLOCK_KEY)
    value = tl.program_id(0) * BLOCK_VALUES + tl.arange(0, BLOCK_VALUES)
    is_key, is_value = key < KEY_DIM, value < VALUE_DIM
    is_state = is_key[:, None] & is_value[None, :]
    # Numbers of a page fit into 32 bits; pages times their numbers need not.
    state = head // PER_KEY * HEAD + head % PER_KEY * (KEY_DIM * VALUE_DIM)
    state_ptr = (pool_ptr + layer_offset + state) + key[:, None] * VALUE_DIM + value[None, :]
    matrix = tl.load(state_ptr + before * page_stride, mask=is_state & (context > 1), other=0.0)

    token_ptr = mixed_ptr + token * mixed_stride
    q_ptr = token_ptr + head // PER_KEY * KEY_DIM + key
    q = tl.load(q_ptr, mask=is_key, other=0.0).to(tl.float32)
    k = tl.load(q_ptr + KEY_HEADS * KEY_DIM, mask=is_key, other=0.0).to(tl.float32)
    v_ptr = token_ptr + 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM + value
    v = tl.load(v_ptr, mask=is_value, other=0.0).to(tl.float32)
    q *= tl.rsqrt(tl.sum(q * q) + EPS) * scale
    k *= tl.rsqrt(tl.sum(k * k) + EPS)

    matrix *= tl.exp(tl.load(decays_ptr + token * decay_stride + head))
    known = tl.sum(matrix * k[:, None], 0)
    added = tl.load(betas_ptr + token * beta_stride + head) * (v - known)
    matrix += k[:, None] * added[None, :]
    out = tl.sum(matrix * q[:, None], 0)

    out_row_ptr = out_ptr + (token * (KEY_HEADS * PER_KEY) + head) * VALUE_DIM
    tl.store(out_row_ptr + value, out.to(out_ptr.dtype.element_ty), mask=is_value)
    # The page may be the one that was read, and of a small state several threads read a number.
    tl.debug_barrier()
    tl.store(state_ptr + own * page_stride, matrix, mask=is_state & (own > 0))
