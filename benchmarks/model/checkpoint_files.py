"""Checkpoints of random weights as safetensors, as a model's authors would publish them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from raydix.runtime.model.checkpoint.checkpoint_config import read_checkpoint_config
from raydix.runtime.model.decoder.decoder import make_decoder
from raydix.runtime.model.families.weight_names import checkpoint_name

SHARD_BYTES = 4 << 30
_STANDARD_DEVIATION = 0.02


def write_checkpoint(
    folder: Path, config: Mapping[str, Any], device: str, shard_bytes: int = SHARD_BYTES
) -> int:
    """Write config.json, shards and their index; what was written is in the page cache.

    For families that store weights as their names say. Returns the bytes of the tensors.
    """
    (folder / "config.json").write_text(json.dumps(dict(config)))
    read = read_checkpoint_config(folder)
    decoder = make_decoder(read.spec, device=torch.device("meta"), dtype=torch.bfloat16)
    names = read.family.value.weight_names
    shapes = {
        checkpoint_name(name, names): part.whole_shape for name, part in decoder.weights().items()
    }

    generator = torch.Generator(device).manual_seed(0)
    weight_map: dict[str, str] = {}
    shard: dict[str, Tensor] = {}
    total_bytes = held_bytes = num_shards = 0
    for name, shape in shapes.items():
        drawn = _draw(name, shape, generator)
        if held_bytes + drawn.nbytes > shard_bytes and shard:
            weight_map |= _write(folder, num_shards, shard)
            num_shards, held_bytes, shard = num_shards + 1, 0, {}
        shard[name] = drawn
        held_bytes += drawn.nbytes
        total_bytes += drawn.nbytes
    weight_map |= _write(folder, num_shards, shard)

    index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return total_bytes


def _draw(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    whole = torch.empty(shape, dtype=torch.bfloat16, device=generator.device)
    if name.endswith("norm.weight"):
        return whole.fill_(1.0).cpu()
    return whole.normal_(std=_STANDARD_DEVIATION, generator=generator).cpu()


def _write(folder: Path, number: int, shard: Mapping[str, Tensor]) -> dict[str, str]:
    file = f"model-{number:05}.safetensors"
    save_file(dict(shard), folder / file, metadata={"format": "pt"})
    return dict.fromkeys(shard, file)
