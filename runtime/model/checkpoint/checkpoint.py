"""Make a decoder of a checkpoint folder, tensor by tensor, fingerprinted on the way."""

import hashlib
import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from raydix.errors import CheckpointError
from raydix.kernels.ops import ChooseOps, choose_ops
from raydix.kernels.pages.page_codec import Codec
from raydix.kernels.weights.weight_part import WeightPart
from raydix.runtime.config.kv_layout import KvLayout
from raydix.runtime.model.checkpoint.checkpoint_config import (
    CheckpointConfig,
    read_checkpoint_config,
)
from raydix.runtime.model.checkpoint.expert_names import is_of_experts
from raydix.runtime.model.checkpoint.left_aside import (
    describe_left_aside,
    is_past_last,
    purpose_left_aside,
)
from raydix.runtime.model.checkpoint.shard_reader import ReadTensor, empty_like_stored, read_tensors
from raydix.runtime.model.checkpoint.weight_files import list_weights, name_some, weight_files
from raydix.runtime.model.collectives.alone import ALONE
from raydix.runtime.model.collectives.protocol import Collectives
from raydix.runtime.model.decoder.arithmetic_version import ARITHMETIC_VERSION
from raydix.runtime.model.decoder.decoder import Decoder, make_decoder
from raydix.runtime.model.decoder.expert_ranks import ExpertRanks
from raydix.runtime.model.experts.stored_experts import StoredExperts, open_stored_experts
from raydix.runtime.model.families.fused_rows import take_apart, with_scales
from raydix.runtime.model.families.table import Family
from raydix.runtime.model.families.weight_names import checkpoint_name, own_name
from raydix.runtime.model.formats.kept_names import KEPT_SCALE
from raydix.runtime.model.formats.restore_plan import RestorePlan
from raydix.runtime.model.formats.restoring import Tensors
from raydix.runtime.model.formats.stored_tensor import FETCH_BOTH, StoredTensor
from raydix.runtime.model.spec.kv_groups import KvGrouping, derive_kv_groups, make_kv_layout
from raydix.runtime.model.spec.spec import ModelSpec
from raydix.runtime.phases import ReadProgress

logger = logging.getLogger(__name__)

_FLOAT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_KEPT_DTYPES = {torch.float8_e4m3fn: "float8", torch.uint8: "numbers of four bits"}
"""The dtypes of what stays as it is stored, and what they are called."""

_Description = tuple[tuple[int, ...], str, bytes]
"""Shape, dtype and digest of a tensor as it is stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A decoder with its weights, and what serving it has to know besides."""

    decoder: Decoder
    weight_fingerprint: bytes
    """32 bytes over the weights, in whatever files and shards they are.

    They cover name, shape, dtype and content of every tensor that the language model may need,
    whole, the format and the way in which its weights are restored; of random weights, what they
    are drawn from.
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

        They cover the arithmetic (`ModelSpec.digest`, ARITHMETIC_VERSION), its dtype, whether its
        order is fixed or rows are rounded on their way to experts, and the weights, whole, as they
        are stored. The namespace of stored pages adds what these hold, and their shape. Nothing
        else counts: not how weights are cut over ranks, nor which device computes with those of a
        checkpoint, nor how long a context may be. Only where `auto` keeps what another GPU
        restores, or ranks would cut within blocks of float8 or groups of four bits, and restore
        those weights, does it.
        """
        dtype = str(self.decoder.dtype).encode()
        dtype += b" in a fixed order" if self.decoder.ops.has_fixed_order else b""
        dtype += b" in rows of float8" if self.decoder.packs_rows else b""
        names = self.decoder.scaled_names
        scaled = repr(names).encode() if names else b""
        parts = self.spec.digest() + dtype + self.weight_fingerprint + scaled
        parts += f" arithmetic {ARITHMETIC_VERSION}".encode()
        return hashlib.sha256(parts).digest()

    def kv_layout(self, page_size: int, dtype: str, codec: Codec = Codec.NONE) -> KvLayout:
        """The shape of the model's pages, of keys and values of `dtype`.

        Raises ConfigError if they cannot be cached so.
        """
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
    choose: ChooseOps = choose_ops,
) -> LoadedModel:
    """Read a Hugging Face checkpoint folder, and keep a rank's part of each tensor.

    Some tensors are held besides the model itself, on its device. Experts that the node's store has
    are not read. `expert_ranks`: see `make_decoder`; `group_layers`: see `derive_kv_groups`.
    `config`: that of the folder, if it has been read. `choose`: see `make_decoder`. Raises
    CheckpointError if the checkpoint is unsupported, incomplete or corrupt, and ConfigError if the
    model cannot be divided among so many ranks.
    """
    folder = Path(folder)
    config = config or read_checkpoint_config(folder)
    spec = config.spec
    if spec.tied_embeddings and _has_other_head(config, folder):
        spec = replace(spec, tied_embeddings=False)
    decoder = make_decoder(
        spec,
        device=device,
        dtype=dtype,
        collectives=collectives,
        expert_ranks=expert_ranks,
        group_layers=group_layers,
        choose=choose,
    )

    stored = open_stored_experts(decoder, _describe_files(folder, config))
    fingerprint = None if stored is None else stored.weight_fingerprint
    if stored is not None and fingerprint is not None:
        load_weights(decoder, config, folder, is_wanted=_is_not_of_experts)
        stored.fill_seats()
    else:
        fingerprint = load_weights(decoder, config, folder)
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
    decoder: Decoder,
    config: CheckpointConfig,
    folder: Path,
    is_wanted: Callable[[str], bool] = _is_any,
) -> bytes:
    """Fill the decoder's parameters that have a wanted name, in the checkpoint's words.

    Returns the weight fingerprint, of the tensors that are wanted.
    """
    described: dict[str, _Description] = {}
    listed = _listed(folder, config, is_wanted)
    plan = config.quantisation.plan(listed)
    _tell_format(config, plan.unused, decoder)
    read = _describe(_telling_progress(plan.arrange(listed), decoder.device), described)
    unused = _fill_all(decoder, config, folder, plan, read, is_wanted)
    if unused:
        logger.warning(
            "%s has tensors that its config.json does not ask for; they are left aside: %s",
            folder,
            name_some(unused),
        )
    entries = sorted((name, *entry) for name, entry in described.items())
    # The same bytes in another format, or restored in another way, are other weights.
    return hashlib.sha256(repr(entries).encode() + config.quantisation.identity.encode()).digest()


def _tell_format(config: CheckpointConfig, unused: Collection[str], decoder: Decoder) -> None:
    quantisation = config.quantisation
    if quantisation.config is not None:
        dtype = str(decoder.dtype).removeprefix("torch.")
        num_int4 = len(decoder.int4_names)
        num_float8 = len(decoder.scaled_names) - num_int4
        kept = f"; {num_float8} matrices stay float8" if num_float8 else ""
        kept += f"; {num_int4} matrices stay in four bits" if num_int4 else ""
        logger.info("weights: %s, to %s%s", quantisation.description, dtype, kept)
    if unused:
        logger.info("scales that nothing needs are left aside: %s", name_some(unused))


def check_weights(folder: str | Path, config: CheckpointConfig) -> None:
    """Raise CheckpointError if the weights in `folder` are not those of its config.

    Headers alone are read: tensors of the same shapes, without bytes, go where those would.
    """
    decoder = make_decoder(config.spec, device=torch.device("meta"), dtype=torch.float32)
    listed = _listed(Path(folder), config, _is_any)
    plan = config.quantisation.plan(listed)
    tensors = ((each.name, empty_like_stored(each)) for each in plan.arrange(listed))
    _fill_all(decoder, config, Path(folder), plan, tensors, _is_any)


def _listed(
    folder: Path, config: CheckpointConfig, is_wanted: Callable[[str], bool]
) -> list[StoredTensor]:
    """The wanted tensors that the language model may need. The log says what others are for."""
    family, num_layers = config.family.value, config.spec.num_layers
    wanted = [each for each in list_weights(folder) if is_wanted(each.name)]
    purposes = [purpose_left_aside(each.name, family, num_layers) for each in wanted]
    left_aside = [each for each in purposes if each is not None]
    if left_aside:
        logger.info("%s has tensors left aside: %s", folder, describe_left_aside(left_aside))
    return [each for each, purpose in zip(wanted, purposes, strict=True) if purpose is None]


def _fill_all(
    decoder: Decoder,
    config: CheckpointConfig,
    folder: Path,
    plan: RestorePlan,
    tensors: Tensors,
    is_wanted: Callable[[str], bool],
) -> list[str]:
    """Fill the parameters that have a wanted name from what the plan makes of the tensors.

    Returns the names of tensors that the model has no place for, as transformers does. Raises
    CheckpointError if one is missing or does not fit.
    """
    family = config.family
    names = family.value.weight_names
    targets = {checkpoint_name(name, names): each for name, each in decoder.weights().items()}
    _, head = _vocabulary_names(family)

    missing = set(filter(is_wanted, targets))
    unexpected: list[str] = []
    fused = with_scales(family.value.fused(decoder.spec))

    def is_kept(module: str) -> bool:
        name = own_name(f"{module}{KEPT_SCALE}")
        return name in targets or (name in fused and fused[name].parts[0] in targets)

    made = plan.restore(tensors, is_kept)
    own = ((own_name(name), tensor) for name, tensor in made)
    num_rows = {name: each.whole_shape[0] for name, each in targets.items()}
    for name, tensor in take_apart(family.value.restore(own, decoder.spec), fused, num_rows):
        if name in targets:
            _fill(targets[name], name, tensor)
            missing.discard(name)
        elif name != head:
            unexpected.append(name)

    # Layers that the config does not count are those of another model.
    if missing or any(is_past_last(each, decoder.spec.num_layers) for each in unexpected):
        raise CheckpointError(
            f"The weights in {folder} do not fit its config.json: missing tensors: "
            f"{name_some(missing)}; unexpected: {name_some(unexpected)}. {FETCH_BOTH}"
        )
    return unexpected


def _has_other_head(config: CheckpointConfig, folder: Path) -> bool:
    """Whether a head is stored that is not the embedding, whatever the config says.

    transformers then unties them, too. One that is quantised differs.
    """
    embedding, head = _vocabulary_names(config.family)
    listed = list_weights(folder)
    stored = [each for each in listed if own_name(each.name) in (embedding, head)]
    of_head = (
        each for each in listed if own_name(each.name).startswith(head.removesuffix("weight"))
    )
    if not config.quantisation.plan(of_head).module_by_tensor:
        if len(stored) < 2:
            return False
        described: dict[str, _Description] = {}
        for _ in _describe(read_tensors(stored, torch.device("cpu")), described):
            pass
        if len(set(described.values())) == 1:
            return False
    logger.warning(
        "tie_word_embeddings is true, but %s differs from %s in %s; they are not tied",
        head,
        embedding,
        folder,
    )
    return True


def _vocabulary_names(family: Family) -> tuple[str, str]:
    """What the checkpoint calls the embedding and the head, which may be the same tensor."""
    names = family.value.weight_names
    return checkpoint_name("embedding.weight", names), checkpoint_name("head.weight", names)


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


def _describe(
    tensors: Iterator[ReadTensor], described: dict[str, _Description]
) -> Iterator[tuple[str, Tensor]]:
    """Pass the tensors on, and put into `described` what the fingerprint says of each."""
    for read in tensors:
        stored = read.stored
        described[stored.name] = (stored.shape, str(read.tensor.dtype), read.digest)
        yield stored.name, read.tensor


def _fill(part: WeightPart, name: str, tensor: Tensor) -> None:
    kept = _KEPT_DTYPES.get(part.target.dtype)
    if kept is not None:
        if tensor.dtype != part.target.dtype:
            raise CheckpointError(
                f"Tensor {name} is {tensor.dtype}; expected {kept}, as config.json tells of it. "
                "Set model.quantization to restore."
            )
    elif tensor.dtype not in _FLOAT_DTYPES:
        raise CheckpointError(
            f"Tensor {name} is {tensor.dtype}; only unquantised float weights are supported."
        )
    if part.whole_shape != tensor.shape:
        raise CheckpointError(
            f"Tensor {name} has shape {list(tensor.shape)}; the config asks for "
            f"{list(part.whole_shape)}. {FETCH_BOTH}"
        )
    part.fill(tensor)


def _describe_files(folder: Path, config: CheckpointConfig) -> bytes:
    """32 bytes that differ once a weight file has been replaced or written, without reading it.

    Or once it is restored otherwise.
    """
    stats = [(str(path), path.stat()) for path, _ in weight_files(folder)]
    entries = [(path, stat.st_size, stat.st_mtime_ns, stat.st_ino) for path, stat in stats]
    return hashlib.sha256(repr(entries).encode() + config.quantisation.identity.encode()).digest()
