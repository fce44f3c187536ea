"""Models with random weights, for measuring speed where only a config is at hand."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch

from raydix.runtime.model.attention import RmsNorm
from raydix.runtime.model.checkpoint import LoadedModel
from raydix.runtime.model.checkpoint_config import read_checkpoint_config
from raydix.runtime.model.decoder import make_decoder

SEED = 0
_STANDARD_DEVIATION = 0.02
"""As transformers initialises these families."""


def make_dummy_model(
    folder: str | Path,
    *,
    device: torch.device,
    dtype: torch.dtype,
    split_kv_groups_at: Sequence[int] = (),
) -> LoadedModel:
    """Build the model of `folder`'s config with normal weights of SEED; norms are ones. Reads no
    weights.

    Equal on devices of one kind, so that their KV pages are interchangeable. Raises CheckpointError
    as `load_model`.
    """
    config = read_checkpoint_config(folder)
    decoder = make_decoder(
        config.spec, device=device, dtype=dtype, split_kv_groups_at=split_kv_groups_at
    )
    generator = torch.Generator(device).manual_seed(SEED)
    for parameter in decoder.parameters():
        parameter.normal_(std=_STANDARD_DEVIATION, generator=generator)
    for module in decoder.modules():
        if isinstance(module, RmsNorm):
            module.weight.fill_(1.0)

    # The generator of each kind of device draws other numbers.
    described = f"dummy {SEED} {dtype} {device.type}"
    return LoadedModel(
        decoder=decoder,
        weight_fingerprint=hashlib.sha256(described.encode()).digest(),
        max_position_embeddings=config.max_position_embeddings,
        eos_token_ids=config.eos_token_ids,
    )
