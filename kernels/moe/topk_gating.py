# mypy: disable-error-code="no-untyped-def"
"""The router's choice: softmax over all experts, then the most likely ones.

Legend: T tokens of the step, E experts, K experts per token.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_EXPERTS = 1024
_BLOCK_ELEMENTS = 512
"""The tokens of a program times experts: one warp's worth for each of 4 tokens with 128 experts."""


def topk_gating(
    router_logits_TE: Tensor, num_experts_per_token: int, *, renormalise: bool
) -> tuple[Tensor, Tensor]:
    """Return (weights_TK float32, expert_ids_TK int32), most likely first.

    Of equals the lower id comes first. bf16 or float32 logits, contiguous in E; the softmax is in
    float32. Weights are divided by their sum if `renormalise`. A token's experts differ whatever
    its logits are; all weights of a row that has a NaN anywhere are NaN. Raises ValueError if a
    shape, dtype or stride differs.
    """
    if router_logits_TE.dtype not in (torch.bfloat16, torch.float32):
        raise ValueError(
            f"Router logits are {router_logits_TE.dtype}; expected bfloat16 or float32."
        )
    if router_logits_TE.dim() != 2 or router_logits_TE.stride(1) != 1:
        raise ValueError(
            f"Router logits have strides {router_logits_TE.stride()}; expected [T, E], contiguous "
            f"in E."
        )

    num_tokens, num_experts = router_logits_TE.shape
    if not 1 <= num_experts_per_token <= num_experts <= MAX_EXPERTS:
        raise ValueError(
            f"{num_experts_per_token} of {num_experts} experts are to be chosen; expected at least "
            f"one, of at most {MAX_EXPERTS}."
        )

    shape, device = (num_tokens, num_experts_per_token), router_logits_TE.device
    weights_TK = torch.empty(shape, dtype=torch.float32, device=device)
    expert_ids_TK = torch.empty(shape, dtype=torch.int32, device=device)
    if num_tokens:
        block_experts = triton.next_power_of_2(num_experts)
        block_tokens = max(_BLOCK_ELEMENTS // block_experts, 1)
        _choose_experts[(triton.cdiv(num_tokens, block_tokens),)](
            router_logits_TE,
            weights_TK,
            expert_ids_TK,
            num_tokens,
            router_logits_TE.stride(0),
            EXPERTS=num_experts,
            CHOICES=num_experts_per_token,
            RENORMALISE=renormalise,
            BLOCK_TOKENS=block_tokens,
            BLOCK_EXPERTS=block_experts,
            BLOCK_CHOICES=triton.next_power_of_2(num_experts_per_token),
            num_warps=4,
        )
    return weights_TK, expert_ids_TK


@triton.jit(do_not_specialize=["num_tokens"])
def _choose_experts(
    logits_ptr,
    weights_ptr,
    ids_ptr,
    num_tokens,
    logits_stride,
    EXPERTS: tl.constexpr,
    CHOICES: tl.constexpr,
    RENORMALISE: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,
    BLOCK_CHOICES: tl.constexpr,
):
    """A few tokens: take the largest logit, strike it out, repeat."""
    token = tl.program_id(0) * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    is_token = token < num_tokens
    expert = tl.arange(0, BLOCK_EXPERTS)
    row_ptr = logits_ptr + token.to(tl.int64)[:, None] * logits_stride + expert[None, :]
    is_expert = is_token[:, None] & (expert < EXPERTS)[None, :]
    logits = tl.load(row_ptr, mask=is_expert, other=float("-inf")).to(tl.float32)
    # Rows past the last token are all -inf; their maximum is taken as 0, so that nothing is NaN.
    maximum = tl.where(is_token, tl.max(logits, 1), 0.0)
    total = tl.sum(tl.exp(logits - maximum[:, None]), 1)

    # NaN equals nothing, not even the largest: it counts as least, so that an expert is found.
    score = tl.where(logits == logits, logits, float("-inf"))
    is_left = tl.broadcast_to((expert < EXPERTS)[None, :], [BLOCK_TOKENS, BLOCK_EXPERTS])

    choice = tl.arange(0, BLOCK_CHOICES)
    chosen_ids = tl.zeros([BLOCK_TOKENS, BLOCK_CHOICES], tl.int32)
    chosen_weights = tl.zeros([BLOCK_TOKENS, BLOCK_CHOICES], tl.float32)
    for k in tl.static_range(CHOICES):
        largest = tl.max(tl.where(is_left, score, float("-inf")), 1)
        is_largest = is_left & (score == largest[:, None])
        largest_id = tl.min(tl.where(is_largest, expert[None, :], BLOCK_EXPERTS), 1)
        is_left = is_left & (expert[None, :] != largest_id[:, None])
        chosen_ids = tl.where((choice == k)[None, :], largest_id[:, None], chosen_ids)
        weight = tl.exp(largest - maximum)
        chosen_weights = tl.where((choice == k)[None, :], weight[:, None], chosen_weights)
    if RENORMALISE:
        # The chosen ones may all be numbers in a row that has a NaN, of which the softmax tells.
        total = tl.where(total == total, tl.sum(chosen_weights, 1), total)
    out = token.to(tl.int64)[:, None] * CHOICES + choice[None, :]
    is_out = is_token[:, None] & (choice < CHOICES)[None, :]
    tl.store(weights_ptr + out, chosen_weights / total[:, None], mask=is_out)
    tl.store(ids_ptr + out, chosen_ids, mask=is_out)
