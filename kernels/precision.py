"""How products of a dtype are computed."""

import torch


def precision_of(dtype: torch.dtype) -> str | None:
    """The `input_precision` of Triton's products: float32 as IEEE has it, else None."""
    return "ieee" if dtype == torch.float32 else None
