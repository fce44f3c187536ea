# mypy: disable-error-code="no-untyped-def"
"""Find the copies that tokens' rows go to by the experts that they chose, counted on the way.

Legend: T tokens of the step, K experts per token, E logical experts, R entries of a route.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_EXPERTS = 1024
_BLOCK_CHOICES = 1024


def route_experts(ids_TK: Tensor, table_ER: Tensor, counts_E: Tensor, demand_E: Tensor) -> Tensor:
    """Return the physical experts, int32 [T, K], and add each logical one's rows to `demand_E`.

    Row t takes entry t modulo `counts_E` of its expert's route. What names no expert, as -1 does,
    becomes -1 and is not counted.
    `ids_TK`: int32 or int64, contiguous; the others int32, contiguous. Reads tables when it runs,
    so a captured launch takes what was put there last. Raises ValueError if a shape, dtype or
    stride differs.
    """
    num_experts, num_entries = _check(ids_TK, table_ER, counts_E, demand_E)
    physical_TK = torch.empty(ids_TK.shape, dtype=torch.int32, device=ids_TK.device)
    if ids_TK.numel():
        _route[(triton.cdiv(ids_TK.numel(), _BLOCK_CHOICES),)](
            ids_TK,
            table_ER,
            counts_E,
            demand_E,
            physical_TK,
            ids_TK.numel(),
            EXPERTS=num_experts,
            ENTRIES=num_entries,
            CHOICES=ids_TK.shape[1],
            BLOCK_CHOICES=_BLOCK_CHOICES,
            BLOCK_EXPERTS=triton.next_power_of_2(num_experts + 1),
            num_warps=4,
        )
    return physical_TK


def _check(ids_TK: Tensor, table_ER: Tensor, counts_E: Tensor, demand_E: Tensor) -> tuple[int, int]:
    if ids_TK.dim() != 2 or not ids_TK.is_contiguous():
        raise ValueError(f"ids have strides {ids_TK.stride()}; expected contiguous [T, K].")
    if ids_TK.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"ids are {ids_TK.dtype}; expected int32 or int64.")

    num_experts, num_entries = table_ER.shape
    expected = {"table": (num_experts, num_entries), "counts": (num_experts,)}
    expected["demand"] = (num_experts,)
    given = {"table": table_ER, "counts": counts_E, "demand": demand_E}
    for name, tensor in given.items():
        is_fit = tensor.dtype == torch.int32 and tensor.is_contiguous()
        if not is_fit or tuple(tensor.shape) != expected[name]:
            raise ValueError(
                f"{name} are {tensor.dtype} {list(tensor.shape)}; expected contiguous int32 "
                f"{list(expected[name])}."
            )
    if num_experts >= MAX_EXPERTS:
        raise ValueError(f"{num_experts} experts; expected fewer than {MAX_EXPERTS}.")
    return num_experts, num_entries


@triton.jit(do_not_specialize=["num_choices"])
def _route(
    ids_ptr,
    table_ptr,
    counts_ptr,
    demand_ptr,
    physical_ptr,
    num_choices,
    EXPERTS: tl.constexpr,
    ENTRIES: tl.constexpr,
    CHOICES: tl.constexpr,
    BLOCK_CHOICES: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,
):
    """Some rows' choices: look each up, and add this block's histogram to the demand."""
    choice = tl.program_id(0) * BLOCK_CHOICES + tl.arange(0, BLOCK_CHOICES)
    is_choice = choice < num_choices
    expert = tl.load(ids_ptr + choice, mask=is_choice, other=-1).to(tl.int32)
    is_sent = (expert >= 0) & (expert < EXPERTS)

    count = tl.load(counts_ptr + expert, mask=is_sent, other=1)
    entry = expert * ENTRIES + (choice // CHOICES) % count
    physical = tl.load(table_ptr + entry, mask=is_sent, other=-1)
    tl.store(physical_ptr + choice, physical, mask=is_choice)

    # One bin more takes what goes nowhere: atomics of single rows would queue up at hot experts.
    bins = tl.histogram(tl.where(is_sent, expert, EXPERTS), BLOCK_EXPERTS)
    each = tl.arange(0, BLOCK_EXPERTS)
    tl.atomic_add(demand_ptr + each, bins, mask=(each < EXPERTS) & (bins > 0), sem="relaxed")
