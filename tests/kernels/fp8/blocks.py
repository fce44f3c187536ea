"""Random matrices of float8, as the kernels of the native way take them."""

import torch

from raydix.kernels.fp8.form import Block
from raydix.kernels.weights.scaled_weight import ScaledWeight
from raydix.kernels.weights.weight import Weight


def random_weight(
    *shape: int,
    block: Block,
    device: torch.device,
    bias: torch.dtype | None = None,
    seed: int = 0,
) -> ScaledWeight:
    """A matrix, or a bank of some, whose products with numbers around 1 are around 1.

    shape: of the matrix, with seats in front or not. bias: its dtype; None: there is none.
    """
    generator = torch.Generator(device).manual_seed(seed)
    numbers = torch.randn(shape, generator=generator, device=device).to(torch.float8_e4m3fn)
    rows, columns = block
    blocks = -(-shape[-2] // rows), -(-shape[-1] // (columns or shape[-1]))
    scales = torch.rand(*shape[:-2], *blocks, generator=generator, device=device) + 0.5
    bias_O = None
    if bias is not None:
        bias_O = torch.randn(shape[:-1], generator=generator, device=device).to(bias)
    return ScaledWeight(Weight(numbers, bias_O), scales * shape[-1] ** -0.5, block)


def random_inputs(*shape: int, device: torch.device, seed: int = 1) -> torch.Tensor:
    """Float32 inputs around 1."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device)
