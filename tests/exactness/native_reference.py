"""A model of transformers that multiplies as the native way does: by loops, from the tensors of a
quantised checkpoint."""

import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tests.checkpoints import load_in_transformers

_SCALE = ".weight_scale_inv"
_LOOKED_INTO = ("kv_b_proj",)
"""Modules that stay floats, as they are no product with tokens."""


def load_native(plain: Path, quantised: Path, size: int) -> Any:
    """The model of the floats `plain`, whose products are those of `quantised`, in blocks.

    size: the outputs, and the inputs, of a block.
    """
    model, tensors = load_in_transformers(plain), load_file(quantised / "model.safetensors")
    matrices = {
        name.removesuffix(_SCALE): _Blocks(tensors[name.replace(_SCALE, ".weight")], scales, size)
        for name, scales in tensors.items()
        if name.endswith(_SCALE)
    }
    for name, module in model.named_modules():
        if name in matrices and not name.endswith(_LOOKED_INTO):
            assert isinstance(module, nn.Linear)
            module.forward = matrices[name]
        elif f"{name}.0.gate_proj" in matrices:
            module.forward = _Experts(matrices, name)
    return model


class _Blocks:
    """A matrix in blocks."""

    def __init__(self, numbers: Tensor, scales: Tensor, size: int) -> None:
        self._numbers = numbers.float()
        self._scales = scales
        self._size = size

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply each token by itself, block by block."""
        rows = [self._of_token(token) for token in x.reshape(-1, x.shape[-1])]
        return torch.stack(rows).view(*x.shape[:-1], -1) if rows else x.new_zeros(0, 1)

    def _of_token(self, x: Tensor) -> Tensor:
        size, out = self._size, torch.zeros(len(self._numbers))
        for d, k in enumerate(range(0, len(x), size)):
            inputs = x[k : k + size]
            largest = max(float(inputs.abs().max()), 2.0**-100)
            scale = 2.0 ** math.ceil(math.log2(largest / 448))
            numbers = (inputs / scale).to(torch.float8_e4m3fn).float()
            for b, n in enumerate(range(0, len(out), size)):
                sums = self._numbers[n : n + size, k : k + size] @ numbers
                out[n : n + size] += sums * scale * self._scales[b, d]
        return out


class _Experts:
    """What computes the experts of a layer, one token and choice after another."""

    def __init__(self, matrices: dict[str, _Blocks], name: str) -> None:
        self._matrices = matrices
        self._name = name

    def __call__(self, hidden: Tensor, ids_TK: Tensor, weights_TK: Tensor) -> Tensor:
        """The arguments and the result of transformers' modules."""
        out = torch.zeros_like(hidden)
        for token, (ids, weights) in enumerate(zip(ids_TK.tolist(), weights_TK, strict=True)):
            for expert, weight in zip(ids, weights, strict=True):
                x = hidden[token : token + 1]
                gate, up = (self._product(expert, kind, x) for kind in ("gate", "up"))
                activated = nn.functional.silu(gate) * up
                out[token] += self._product(expert, "down", activated)[0] * weight
        return out

    def _product(self, expert: int, kind: str, x: Tensor) -> Tensor:
        return self._matrices[f"{self._name}.{expert}.{kind}_proj"](x)
