"""Models with random weights, for measuring speed where only a config is at hand."""

import hashlib
from pathlib import Path

import torch
from torch import Tensor

from raydix.runtime.model.checkpoint import LoadedModel
from raydix.runtime.model.checkpoint_config import read_checkpoint_config
from raydix.runtime.model.collectives.alone import ALONE
from raydix.runtime.model.collectives.protocol import Collectives
from raydix.runtime.model.decoder import make_decoder
from raydix.runtime.model.expert_ranks import ExpertRanks
from raydix.runtime.model.kv_groups import KvGrouping, derive_kv_groups

SEED = 0
_STANDARD_DEVIATION = 0.02
"""As transformers initialises these families."""


def make_dummy_model(
    folder: str | Path,
    *,
    device: torch.device,
    dtype: torch.dtype,
    collectives: Collectives = ALONE,
    expert_ranks: ExpertRanks | None = None,
    group_layers: KvGrouping = derive_kv_groups,
) -> LoadedModel:
    """Build the model of `folder`'s config with random weights; norms are ones. Reads no weights.

    Each tensor is drawn whole, from SEED and its name alone: a rank that keeps a part of it cuts
    that from the same whole, at every degree of parallelism. So the fingerprint, which names the
    seed and not the bytes, holds for all of them. Raises CheckpointError as `load_model`.
    """
    config = read_checkpoint_config(folder)
    decoder = make_decoder(
        config.spec,
        device=device,
        dtype=dtype,
        collectives=collectives,
        expert_ranks=expert_ranks,
        group_layers=group_layers,
    )
    generator = torch.Generator(device)
    for name, part in decoder.weights().items():
        part.fill(_draw(name, part.whole_shape, dtype, generator))

    # Generators of other kinds of device, and of other dtypes, draw other numbers.
    described = f"dummy {SEED} by name, {dtype}, {device.type}"
    return LoadedModel(
        decoder=decoder,
        weight_fingerprint=hashlib.sha256(described.encode()).digest(),
        max_position_embeddings=config.max_position_embeddings,
        eos_token_ids=config.eos_token_ids,
    )


def _draw(
    name: str, shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator
) -> Tensor:
    """The whole tensor of that name."""
    whole = torch.empty(shape, dtype=dtype, device=generator.device)
    if name.endswith("norm.weight"):
        return whole.fill_(1.0)
    digest = hashlib.sha256(f"{SEED} {name}".encode()).digest()
    generator.manual_seed(int.from_bytes(digest[:7]))
    return whole.normal_(std=_STANDARD_DEVIATION, generator=generator)
