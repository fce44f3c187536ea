"""Models with random weights, for measuring speed where only a config is at hand."""

import hashlib
from pathlib import Path

import torch

from raydix.runtime.model.attention import RmsNorm
from raydix.runtime.model.checkpoint import LoadedModel
from raydix.runtime.model.decoder import make_decoder
from raydix.runtime.model.spec import read_spec

SEED = 0
_STANDARD_DEVIATION = 0.02
"""As transformers initialises these families."""


def make_dummy_model(
    folder: str | Path, *, device: torch.device, dtype: torch.dtype
) -> LoadedModel:
    """Build the model of `folder`'s config with normal weights of SEED; norms are ones. Reads no
    weights.

    Equal on devices of one kind, so that their KV pages are interchangeable. Raises CheckpointError
    as `load_model`.
    """
    decoder = make_decoder(read_spec(folder), device=device, dtype=dtype)
    generator = torch.Generator(device).manual_seed(SEED)
    for parameter in decoder.parameters():
        parameter.normal_(std=_STANDARD_DEVIATION, generator=generator)
    for module in decoder.modules():
        if isinstance(module, RmsNorm):
            module.weight.fill_(1.0)
    # The generator of each kind of device draws other numbers.
    fingerprint = hashlib.sha256(f"dummy {SEED} {dtype} {device.type}".encode()).digest()
    return LoadedModel(
        decoder=decoder, weight_fingerprint=fingerprint, config_digest=decoder.spec.digest()
    )
