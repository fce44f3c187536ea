"""Random matrices of four bits, as the kernels of the native way take them."""

import torch

from raydix.kernels.int4.form import Int4Groups
from raydix.kernels.weights.int4_weight import Int4Weight
from raydix.kernels.weights.weight import Weight


def random_weight(
    *shape: int, group: int | None, device: torch.device, bias: bool = False, seed: int = 0
) -> Int4Weight:
    """A matrix, or a bank of some, whose products with numbers around 1 are around 1.

    shape: of the matrix, with seats in front or not.
    """
    generator = torch.Generator(device).manual_seed(seed)
    *front, inputs = shape
    numbers = torch.randint(0, 256, (*front, inputs // 2), generator=generator, device=device)
    groups = *shape[:-2], -(-inputs // (group or inputs)), shape[-2]
    scales = torch.rand(groups, generator=generator, device=device) + 0.5
    zeros = torch.randint(0, 16, groups, generator=generator, device=device)
    bias_O = torch.randn(front, generator=generator, device=device) if bias else None
    return Int4Weight(
        Weight(numbers.to(torch.uint8), bias_O),
        scales * inputs**-0.5 / 6,
        zeros.to(torch.uint8),
        Int4Groups(group),
    )


def random_inputs(*shape: int, device: torch.device, seed: int = 1) -> torch.Tensor:
    """Float32 inputs around 1."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device)
