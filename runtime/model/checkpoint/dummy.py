"""Models with random weights, for measuring speed where only a config is at hand."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from raydix.errors import CheckpointError
from raydix.kernels.int4.form import MIDDLE
from raydix.kernels.ops import ChooseOps, choose_ops
from raydix.kernels.weights.int4_weight import ZERO_POINT
from raydix.kernels.weights.scaled_weight import SCALE
from raydix.kernels.weights.weight_part import WeightPart
from raydix.runtime.model.checkpoint.checkpoint import LoadedModel
from raydix.runtime.model.checkpoint.checkpoint_config import (
    CheckpointConfig,
    read_checkpoint_config,
)
from raydix.runtime.model.checkpoint.expert_names import is_of_experts
from raydix.runtime.model.collectives.alone import ALONE
from raydix.runtime.model.collectives.protocol import Collectives
from raydix.runtime.model.decoder.decoder import make_decoder
from raydix.runtime.model.decoder.expert_ranks import ExpertRanks
from raydix.runtime.model.experts.stored_experts import open_stored_experts
from raydix.runtime.model.spec.kv_groups import KvGrouping, derive_kv_groups

FIXED = "dummy.safetensors"
"""The file in a model's folder with tensors that are taken as they are, by the decoder's names."""
SEED = 0
_STANDARD_DEVIATION = 0.02
"""The spread of random weights, as transformers initialises these families."""
_INT4_DEVIATION = (255 / 12) ** 0.5
"""The deviation of numbers of four bits, all of which are drawn as often."""
_FLOAT8_DEVIATION = 32.0
"""The deviation of float8 numbers, far from both ends of their range."""


def make_dummy_model(
    folder: str | Path,
    *,
    device: torch.device,
    dtype: torch.dtype,
    collectives: Collectives = ALONE,
    expert_ranks: ExpertRanks | None = None,
    group_layers: KvGrouping = derive_kv_groups,
    config: CheckpointConfig | None = None,
    choose: ChooseOps = choose_ops,
) -> LoadedModel:
    """Build the model of `folder`'s config with random weights; norms and lone factors are ones.

    Reads no weights but those of FIXED, if the folder has that file: a router's bias, say, by which
    some experts are chosen more often.

    Each tensor is drawn whole, from SEED and its name alone: a rank that keeps a part of it cuts
    that from the same whole, at every degree of parallelism. So the fingerprint, which names the
    seed and not the bytes, holds for all of them. Raises CheckpointError as `load_model`, and if
    FIXED has a tensor of another name or shape.
    """
    config = config or read_checkpoint_config(folder)
    decoder = make_decoder(
        config.spec,
        device=device,
        dtype=dtype,
        collectives=collectives,
        expert_ranks=expert_ranks,
        group_layers=group_layers,
        choose=choose,
    )
    parts = decoder.weights()
    fixed_bytes = _read_fixed(Path(folder))
    fixed = _fitting(fixed_bytes, parts)

    # Generators of other kinds of device, and of other dtypes, draw other numbers.
    described = f"dummy {SEED} by name, {dtype}, {device.type}"
    fingerprint = hashlib.sha256(described.encode() + fixed_bytes).digest()
    stored = open_stored_experts(decoder, fingerprint)
    has_experts = stored is not None and stored.weight_fingerprint is not None

    generator = torch.Generator(device)
    for name, part in parts.items():
        if not part.target.numel() or (has_experts and is_of_experts(name)):
            continue
        given = fixed.get(name)
        part.fill(_draw(name, parts, dtype, generator) if given is None else given)

    if stored is not None and has_experts:
        stored.fill_seats()
    elif stored is not None:
        stored.fill_store(fingerprint)

    return LoadedModel(
        decoder=decoder,
        weight_fingerprint=fingerprint,
        stored_experts=stored,
        max_position_embeddings=config.max_position_embeddings,
        eos_token_ids=config.eos_token_ids,
    )


def _read_fixed(folder: Path) -> bytes:
    path = folder / FIXED
    return path.read_bytes() if path.exists() else b""


def _fitting(stored: bytes, parts: Mapping[str, WeightPart]) -> Mapping[str, Tensor]:
    """The tensors of FIXED, each of which must be one of the decoder's."""
    try:
        fixed = load(stored) if stored else {}
    except SafetensorError as error:
        raise CheckpointError(f"{FIXED} is corrupt: {error}") from error

    for name, tensor in fixed.items():
        whole = parts[name].whole_shape if name in parts else None
        if whole != tensor.shape:
            raise CheckpointError(
                f"{FIXED} has {name} {list(tensor.shape)}; the decoder has "
                f"{'no such tensor' if whole is None else list(whole)}. Correct the file."
            )
    return fixed


def _draw(
    name: str, parts: Mapping[str, WeightPart], dtype: torch.dtype, generator: torch.Generator
) -> Tensor:
    """The whole tensor of that name. parts: those of all."""
    part = parts[name]
    whole = torch.empty(part.whole_shape, dtype=dtype, device=generator.device)
    if name.endswith(ZERO_POINT):
        return whole.to(torch.uint8).fill_(MIDDLE)
    if name.endswith(SCALE):
        is_int4 = f"{name.removesuffix(SCALE)}{ZERO_POINT}" in parts
        deviation = _INT4_DEVIATION if is_int4 else _FLOAT8_DEVIATION
        return whole.float().fill_(_STANDARD_DEVIATION / deviation)
    if name.endswith(("norm.weight", "layer_scalar", "expert_scales")):
        return whole.fill_(1.0)
    digest = hashlib.sha256(f"{SEED} {name}".encode()).digest()
    generator.manual_seed(int.from_bytes(digest[:7]))
    if part.target.dtype == torch.float8_e4m3fn:
        return whole.normal_(std=_FLOAT8_DEVIATION, generator=generator).to(part.target.dtype)
    if part.target.dtype == torch.uint8:
        return whole.to(torch.uint8).random_(0, 256, generator=generator)
    return whole.normal_(std=_STANDARD_DEVIATION, generator=generator)
