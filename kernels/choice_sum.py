# mypy: disable-error-code="no-untyped-def"
"""The last of an MoE layer's kernels: the sum over each token's choices.

Legend: T tokens, K experts per token, C hidden.
"""

import triton
import triton.language as tl
from torch import Tensor

from raydix.kernels.early_launch import early_launch, wait_for_inputs

_SUM_BLOCK = 1024


def sum_over_choices(choices_TKC: Tensor, expert_ids_TK: Tensor, num_experts: int) -> Tensor:
    """Their sum [T, C], in float32 and then rounded; ids outside of 0..E-1 add nothing."""
    num_tokens, num_choices, hidden = choices_TKC.shape
    out_TC = choices_TKC.new_empty((num_tokens, hidden))
    _sum_choices[(num_tokens, triton.cdiv(hidden, _SUM_BLOCK))](
        choices_TKC,
        expert_ids_TK,
        out_TC,
        num_experts,
        CHOICES=num_choices,
        HIDDEN=hidden,
        BLOCK=_SUM_BLOCK,
        num_warps=4,
        **early_launch(choices_TKC.device),
    )
    return out_TC


@triton.jit
def _sum_choices(
    choices_ptr,
    ids_ptr,
    out_ptr,
    num_experts,
    CHOICES: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One block of one token; slots without an expert hold nothing."""
    wait_for_inputs(EARLY)
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = column < HIDDEN

    total = tl.zeros([BLOCK], tl.float32)
    for choice in tl.static_range(CHOICES):
        slot = token * CHOICES + choice
        expert = tl.load(ids_ptr + slot)
        is_chosen = (expert >= 0) & (expert < num_experts)
        value = tl.load(choices_ptr + slot * HIDDEN + column, mask=is_column & is_chosen, other=0.0)
        total += value.to(tl.float32)
    tl.store(out_ptr + token * HIDDEN + column, total.to(out_ptr.dtype.element_ty), mask=is_column)
