"""Small quantised checkpoints, and beside each the floats that its tensors stand for.

Those are computed number by number, in plain loops, by the formula of the format.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

_MATRICES = re.compile(
    r"(?!vision_tower|multi_modal_projector).*(_proj|_with_mqa|\.w[123])\.weight"
)
"""Weights that tests quantise: those of attention and of feed-forwards, experts among them."""


@dataclass(frozen=True)
class QuantisedMatrix:
    """A matrix twice, stored and restored."""

    parts: Mapping[str, Tensor]
    """What is stored, by the end of the name."""
    restored: Tensor
    """What that stands for, float32 [outputs, inputs]."""


Quantise = Callable[[Tensor], QuantisedMatrix]
"""Quantises a float32 matrix."""


@dataclass(frozen=True)
class Scheme:
    """A way to quantise, as config.json tells of it."""

    quantise: Quantise
    config: Mapping[str, Any]
    """The `quantization_config` of such a checkpoint."""


def quantise_checkpoint(plain: Path, scheme: Scheme) -> Path:
    """Quantise the matrices of a checkpoint, which then holds what restoring them gives.

    Returns the folder of the quantised one.
    """
    tensors = load_file(plain / "model.safetensors")
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if _MATRICES.fullmatch(name):
            matrix = scheme.quantise(tensor)
            tensors[name] = matrix.restored
            module = name.removesuffix(".weight")
            stored |= {module + part: each for part, each in matrix.parts.items()}
        else:
            stored[name] = tensor
    save_file(tensors, plain / "model.safetensors")

    folder = plain.with_name(f"{plain.name}-quantised")
    folder.mkdir()
    config = json.loads((plain / "config.json").read_text())
    config["quantization_config"] = dict(scheme.config)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(stored, folder / "model.safetensors")
    return folder


def number_by_number(shape: torch.Size, number: Callable[[int, int], float]) -> Tensor:
    """The float32 matrix whose number at (output, input) is this."""
    outputs, inputs = shape
    return torch.tensor(
        [[float(number(n, k)) for k in range(inputs)] for n in range(outputs)], dtype=torch.float32
    )


def fp8_in_blocks(weight: Tensor, rows: int, columns: int) -> QuantisedMatrix:
    """A scale for each block, of which the last are short, so that the largest number is 448."""
    outputs, inputs = weight.shape
    scales = torch.tensor(
        [
            [
                float(weight[n : n + rows, k : k + columns].abs().max()) / 448
                for k in range(0, inputs, columns)
            ]
            for n in range(0, outputs, rows)
        ]
    )
    stored = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
    for n in range(outputs):
        for k in range(inputs):
            stored[n, k] = weight[n, k] / scales[n // rows, k // columns]
    numbers, by_block = stored.float().numpy(), scales.numpy()
    return QuantisedMatrix(
        {".weight": stored, ".weight_scale_inv": scales},
        number_by_number(
            weight.shape, lambda n, k: numbers[n, k] * by_block[n // rows, k // columns]
        ),
    )


def fp8_per_tensor(weight: Tensor) -> QuantisedMatrix:
    """One bfloat16 scale, and one of activations, as Mistral 3 has them."""
    scale = (weight.abs().max() / 448).bfloat16()
    stored = (weight / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    numbers, factor = stored.float().numpy(), np.float32(scale.float())
    return QuantisedMatrix(
        {
            ".weight": stored,
            ".weight_scale_inv": scale,
            ".activation_scale": torch.tensor(0.25, dtype=torch.bfloat16),
        },
        number_by_number(weight.shape, lambda n, k: numbers[n, k] * factor),
    )


SCHEMES: Mapping[str, Scheme] = {
    "fp8 blocks": Scheme(
        lambda weight: fp8_in_blocks(weight, 16, 32),
        {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [16, 32],
            "modules_to_not_convert": ["lm_head", "gate", "vision_tower", "model.absent"],
        },
    ),
    "fp8 per tensor": Scheme(
        fp8_per_tensor,
        {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None},
    ),
}
"""One of each kind, with blocks so small that tiny matrices have several."""
