"""Weights of layers that are tried by themselves."""

import torch

from raydix.kernels.weights.linear_weight import WeightMaker


def plain_weights(device: torch.device, dtype: torch.dtype) -> WeightMaker:
    """A maker of floats alone."""
    return WeightMaker(device=device, dtype=dtype, forms={})
