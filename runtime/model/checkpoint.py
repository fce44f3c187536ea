"""From a checkpoint folder to a decoder, tensor by tensor, fingerprinted on the way."""

import hashlib
import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from raydix.errors import CheckpointError
from raydix.kernels.page_codec import Codec
from raydix.kernels.weight_part import WeightPart
from raydix.runtime.config.kv_layout import KvLayout
from raydix.runtime.model.checkpoint_config import (
    CheckpointConfig,
    read_checkpoint_config,
    read_json,
)
from raydix.runtime.model.collectives.alone import ALONE
from raydix.runtime.model.collectives.protocol import Collectives
from raydix.runtime.model.decoder import Decoder, make_decoder
from raydix.runtime.model.expert_names import is_of_experts
from raydix.runtime.model.expert_ranks import ExpertRanks
from raydix.runtime.model.families.table import Family
from raydix.runtime.model.families.weight_names import checkpoint_name
from raydix.runtime.model.kv_groups import KvGrouping, derive_kv_groups, make_kv_layout
from raydix.runtime.model.shard_reader import (
    ReadTensor,
    StoredTensor,
    list_tensors,
    read_tensors,
)
from raydix.runtime.model.spec import ModelSpec
from raydix.runtime.model.stored_experts import StoredExperts, open_stored_experts
from raydix.runtime.phases import ReadProgress

logger = logging.getLogger(__name__)

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_FLOAT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_MAX_NAMED = 5

_Description = tuple[tuple[int, ...], str, bytes]
"""Shape, dtype and digest of a tensor as it is stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A decoder with its weights, and what serving it has to know besides."""

    decoder: Decoder
    weight_fingerprint: bytes
    """32 bytes over the weights, in whatever files and shards they are.

    They cover name, shape, dtype and content of every tensor of the checkpoint, whole; of random
    weights, what they are drawn from.
    """
    max_position_embeddings: int
    eos_token_ids: tuple[int, ...]
    stored_experts: StoredExperts | None = None
    """The node's store of all experts, with these weights in it; None if there is none."""

    @property
    def spec(self) -> ModelSpec:
        """The decoder's spec."""
        return self.decoder.spec

    @property
    def fingerprint(self) -> bytes:
        """32 bytes; where they are equal, equal tokens have the same keys and values.

        They cover the arithmetic (`ModelSpec.digest`) and the weights, whole, as they are stored.
        The namespace of stored pages adds the dtype that is served and the shape of pages. Nothing
        else counts: not how weights are cut over ranks, nor which device computes with those of a
        checkpoint, nor how long a context may be.
        """
        return hashlib.sha256(self.spec.digest() + self.weight_fingerprint).digest()

    def kv_layout(self, page_size: int, dtype: str, codec: Codec = Codec.NONE) -> KvLayout:
        """The shape of the model's pages. Raises ConfigError if the codec cannot encode them."""
        groups = self.decoder.kv_groups
        return make_kv_layout(groups, page_size=page_size, dtype=dtype, codec=codec)


def load_model(
    folder: str | Path,
    *,
    device: torch.device,
    dtype: torch.dtype,
    collectives: Collectives = ALONE,
    expert_ranks: ExpertRanks | None = None,
    group_layers: KvGrouping = derive_kv_groups,
    config: CheckpointConfig | None = None,
) -> LoadedModel:
    """Read a Hugging Face checkpoint folder, and keep a rank's part of each tensor.

    Some tensors are held besides the model itself, on its device. Experts that the node's store has
    are not read. `expert_ranks`: see `make_decoder`; `group_layers`: see `derive_kv_groups`.
    `config`: that of the folder, if it has been read. Raises CheckpointError if the checkpoint is
    unsupported, incomplete or corrupt, and ConfigError if the model cannot be divided among so many
    ranks.
    """
    folder = Path(folder)
    config = config or read_checkpoint_config(folder)
    decoder = make_decoder(
        config.spec,
        device=device,
        dtype=dtype,
        collectives=collectives,
        expert_ranks=expert_ranks,
        group_layers=group_layers,
    )

    stored = open_stored_experts(decoder, _describe_files(folder))
    fingerprint = None if stored is None else stored.weight_fingerprint
    if stored is not None and fingerprint is not None:
        load_weights(decoder, config.family, folder, is_wanted=_is_not_of_experts)
        stored.fill_slots()
    else:
        fingerprint = load_weights(decoder, config.family, folder)
        if stored is not None:
            stored.fill_store(fingerprint)

    return LoadedModel(
        decoder=decoder,
        weight_fingerprint=fingerprint,
        max_position_embeddings=config.max_position_embeddings,
        eos_token_ids=config.eos_token_ids,
        stored_experts=stored,
    )


def _is_not_of_experts(name: str) -> bool:
    return not is_of_experts(name)


def _is_any(name: str) -> bool:
    return True


def load_weights(
    decoder: Decoder, family: Family, folder: Path, is_wanted: Callable[[str], bool] = _is_any
) -> bytes:
    """Fill the decoder's parameters that have a wanted name, in the checkpoint's words.

    Returns the weight fingerprint, of the tensors that are wanted.
    """
    names = family.value.weight_names
    targets = {checkpoint_name(name, names): each for name, each in decoder.weights().items()}
    embedding, head = (checkpoint_name(f"{part}.weight", names) for part in ("embedding", "head"))
    may_repeat = {head} if decoder.spec.tied_embeddings else set()

    missing = set(filter(is_wanted, targets))
    unexpected: list[str] = []
    described: dict[str, _Description] = {}
    listed = _list_tensors(folder, is_wanted)
    read = _describe(_telling_progress(listed, decoder.device), described)
    for name, tensor in family.value.restore(read):
        if name in targets:
            _fill(targets[name], name, tensor)
            missing.discard(name)
        elif name not in may_repeat and not _is_ignored(name, family, decoder.spec.num_layers):
            unexpected.append(name)

    if missing or unexpected:
        raise CheckpointError(
            f"{folder} does not fit its config: missing tensors: {_some(missing)}; unexpected: "
            f"{_some(unexpected)}."
        )
    for name in may_repeat & set(described):
        if described[name] != described[embedding]:
            raise CheckpointError(
                f"tie_word_embeddings is true, but {name} differs from {embedding}."
            )
    entries = sorted((name, *entry) for name, entry in described.items())
    return hashlib.sha256(repr(entries).encode()).digest()


def _telling_progress(
    tensors: Sequence[StoredTensor], device: torch.device
) -> Iterator[ReadTensor]:
    """Read the tensors, and log how far they have come: a large checkpoint takes minutes."""
    total_bytes = sum(stored.num_bytes for stored in tensors)
    progress = ReadProgress("weights read", total_bytes, time.monotonic())
    try:
        for read in read_tensors(tensors, device):
            yield read
            # Only now, as whoever took it has copied it to where it belongs.
            news = progress.advance(read.stored.num_bytes, time.monotonic())
            if news is not None:
                logger.info("%s", news)
    except OSError as error:
        raise CheckpointError(f"a shard cannot be read: {error}") from error
    logger.info("%s", progress.summary(time.monotonic()))


def _is_ignored(name: str, family: Family, num_layers: int) -> bool:
    """Whether a checkpoint may have this tensor, though the decoder has not."""
    # Old exports carry frequencies that the config fixes.
    if name.endswith("rotary_emb.inv_freq"):
        return True
    layer = re.match(r"model\.layers\.(\d+)\.", name)
    is_past_last = layer is not None and int(layer[1]) >= num_layers
    return family.value.has_prediction_layers and is_past_last


def _describe(
    tensors: Iterator[ReadTensor], described: dict[str, _Description]
) -> Iterator[tuple[str, Tensor]]:
    """Pass the tensors on, and put into `described` what the fingerprint says of each."""
    for read in tensors:
        stored = read.stored
        described[stored.name] = (stored.shape, str(stored.dtype), read.digest)
        yield stored.name, read.tensor


def _fill(part: WeightPart, name: str, tensor: Tensor) -> None:
    if tensor.dtype not in _FLOAT_DTYPES:
        raise CheckpointError(
            f"Tensor {name} is {tensor.dtype}; only unquantised float weights are supported."
        )
    if part.whole_shape != tensor.shape:
        raise CheckpointError(
            f"Tensor {name} has shape {list(tensor.shape)}; the config asks for "
            f"{list(part.whole_shape)}."
        )
    part.fill(tensor)


def _some(names: set[str] | list[str]) -> str:
    listed = sorted(names)
    rest = f" and {len(listed) - _MAX_NAMED} more" if len(listed) > _MAX_NAMED else ""
    return (", ".join(listed[:_MAX_NAMED]) or "none") + rest


def _describe_files(folder: Path) -> bytes:
    """32 bytes that differ once a weight file has been replaced or written, without reading it."""
    stats = [(str(path), path.stat()) for path, _ in _shards(folder) if path.exists()]
    entries = [(path, stat.st_size, stat.st_mtime_ns, stat.st_ino) for path, stat in stats]
    return hashlib.sha256(repr(entries).encode()).digest()


def _list_tensors(folder: Path, is_wanted: Callable[[str], bool]) -> list[StoredTensor]:
    """Every tensor of every shard that is wanted, each once."""
    listed: list[StoredTensor] = []
    for path, expected in _shards(folder):
        try:
            # It checks what the header says, and against the length of the file.
            with safe_open(path, framework="pt", device="cpu") as shard:
                names = set(shard.keys())
            tensors = list_tensors(path)
        except (OSError, SafetensorError, ValueError) as error:
            raise CheckpointError(f"{path} is missing or corrupt: {error}") from error
        if expected is not None and names != expected:
            differing = expected.symmetric_difference(names)
            raise CheckpointError(f"{path.name} and {_INDEX} disagree about {_some(differing)}.")
        listed += [each for each in tensors if is_wanted(each.name)]
    return listed


def _shards(folder: Path) -> list[tuple[Path, set[str] | None]]:
    """Weight files and, where an index lists them, the tensors that each must hold."""
    if not (folder / _INDEX).exists():
        if not (folder / _SINGLE).exists():
            raise CheckpointError(
                f"{folder} holds neither {_SINGLE} nor {_INDEX}; only safetensors are supported."
            )
        return [(folder / _SINGLE, None)]

    weight_map = read_json(folder / _INDEX).get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointError(f"{folder / _INDEX} has no weight_map.")

    by_file: dict[str, set[str]] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise CheckpointError(
                f"{_INDEX} says that {name} is in {file!r}; expected the name of a file of "
                f"{folder}. Correct the index, or fetch the checkpoint again."
            )
        by_file.setdefault(file, set()).add(name)
    return [(folder / file, names) for file, names in sorted(by_file.items())]
