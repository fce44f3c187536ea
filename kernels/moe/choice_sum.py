# mypy: disable-error-code="no-untyped-def"
"""The sum over each token's choices, once their experts' outputs are there.

Legend: T tokens, K experts per token, C hidden, E experts.
"""

import triton
import triton.language as tl
from torch import Tensor

_SUM_BLOCK = 1024


def sum_over_choices(choices_TKC: Tensor, expert_ids_TK: Tensor, num_experts: int) -> Tensor:
    """Sum of a token's weighted outputs, in float32 and rounded once, [T, C].

    Choices outside of 0..E-1 add nothing, whatever is in their place.
    """
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
):
    """One block of one token; pairs without an expert hold nothing."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = column < HIDDEN

    total = tl.zeros([BLOCK], tl.float32)
    for choice in tl.static_range(CHOICES):
        pair = token * CHOICES + choice
        expert = tl.load(ids_ptr + pair)
        is_chosen = (expert >= 0) & (expert < num_experts)
        value = tl.load(choices_ptr + pair * HIDDEN + column, mask=is_column & is_chosen, other=0.0)
        total += value.to(tl.float32)
    tl.store(out_ptr + token * HIDDEN + column, total.to(out_ptr.dtype.element_ty), mask=is_column)
