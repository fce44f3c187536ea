# mypy: disable-error-code="no-untyped-def"
"""A product whose parts are not yet added up: whoever reads it does that on the way.

Legend: S summands, T tokens of the step, O outputs.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from raydix.kernels.device.early_launch import early_launch, wait_for_inputs

MAX_SUMMANDS = 32
_BLOCK = 1024


def first_summand(product: Tensor, dtype: torch.dtype | None) -> tuple[Tensor, int, torch.dtype]:
    """The first of a product's summands [S, T, O] or [T, O], their number, and its dtype.

    A product is its own only summand and has its own dtype; `dtype` is that of what summands add
    up to. Raises ValueError if that is None, or unless the summands are 1 to `MAX_SUMMANDS`,
    float32 and contiguous.
    """
    if product.dim() != 3:
        return product, 1, product.dtype
    if dtype is None:
        raise ValueError("The dtype of summands' sum is None; expected that of the product.")
    num_summands = _check_summands(product)
    return product[0], num_summands, dtype


def _check_summands(summands_STO: Tensor) -> int:
    """Return how many there are."""
    is_fit = summands_STO.dtype == torch.float32 and summands_STO.is_contiguous()
    if summands_STO.dim() != 3 or not is_fit:
        raise ValueError(
            f"Summands are {summands_STO.dtype} {tuple(summands_STO.shape)}, strides "
            f"{summands_STO.stride()}; expected contiguous float32 [S, T, O]."
        )
    if not 1 <= len(summands_STO) <= MAX_SUMMANDS:
        raise ValueError(f"{len(summands_STO)} summands; expected 1 to {MAX_SUMMANDS}.")
    return len(summands_STO)


def add_up(summands_STO: Tensor, dtype: torch.dtype) -> Tensor:
    """The summands' sum [T, O], rounded to `dtype`. Raises ValueError as `first_summand` does."""
    num_summands = _check_summands(summands_STO)
    out_TO = summands_STO.new_empty(summands_STO.shape[1:], dtype=dtype)
    if out_TO.numel():
        _add_up[(triton.cdiv(out_TO.numel(), _BLOCK),)](
            summands_STO,
            out_TO,
            out_TO.numel(),
            SUMMANDS=num_summands,
            BLOCK=_BLOCK,
            num_warps=4,
            **early_launch(out_TO.device),
        )
    return out_TO


@triton.jit
def _add_up(
    summands_ptr,
    out_ptr,
    size,
    SUMMANDS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One block of the sum."""
    wait_for_inputs(EARLY)
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_index = index < size
    dtype = out_ptr.dtype.element_ty
    total = sum_rounded(summands_ptr + index, size, is_index, SUMMANDS, dtype)
    tl.store(out_ptr + index, total.to(dtype), mask=is_index)


@triton.jit
def sum_rounded(ptr, stride, mask, SUMMANDS: tl.constexpr, dtype: tl.constexpr):
    """The sum, in their order, of what lies `stride` apart: float32, rounded to `dtype`.

    One summand is taken as it is.
    """
    total = tl.load(ptr, mask=mask, other=0.0).to(tl.float32)
    for summand in tl.static_range(1, SUMMANDS):
        total += tl.load(ptr + summand * stride, mask=mask, other=0.0)
    return total.to(dtype).to(tl.float32)
