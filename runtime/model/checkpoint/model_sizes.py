"""How many bytes of weights a rank holds, by a checkpoint's config alone: nothing is loaded."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from raydix.kernels.pages.page_codec import Codec
from raydix.runtime.config.kv_layout import KvLayout
from raydix.runtime.config.policies import QuantizationWay
from raydix.runtime.model.checkpoint.checkpoint_config import (
    CheckpointConfig,
    read_checkpoint_config,
)
from raydix.runtime.model.checkpoint.expert_names import is_of_experts
from raydix.runtime.model.checkpoint.weight_files import stored_bytes
from raydix.runtime.model.decoder.decoder import make_decoder
from raydix.runtime.model.spec.kv_groups import derive_kv_groups, make_kv_layout
from raydix.runtime.model.spec.spec import ModelSpec, MoeMlpSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """What a model takes at one degree of tensor parallelism, before any rank has started."""

    checkpoint: CheckpointConfig
    layout: KvLayout
    max_position_embeddings: int
    vocab_size: int
    hidden_size: int
    rank_bytes: int
    """Weights of a rank of a lane that shares its experts with nobody, as they are served."""
    rank_expert_bytes: int
    """The bytes of routed experts among `rank_bytes`."""
    all_expert_bytes: int
    """Routed experts, whole."""
    stored_bytes: int | None
    """The bytes of the weights' files, which are read; None if they are not all here."""
    num_experts: int
    """The number of experts of a layer; 0 if tokens are routed to none."""
    layer_outputs: int
    """The numbers that the products of a rank's widest layer give for a token, without experts."""
    rank_expert_numbers: int
    """The numbers that experts hold for a token at once, in a lane that shares them with nobody."""
    all_expert_numbers: int
    """The same of whole experts."""


class _Part:
    """`Collectives` of a lane that nobody steps: it only says how many ranks there are."""

    rank = 0
    is_capturable = False

    def __init__(self, size: int) -> None:
        self.size = size

    def sum(self, part: Tensor) -> Tensor:
        """Return the part: no other rank computes here."""
        return part

    def gather(self, part_RV: Tensor) -> Tensor:
        """Return the part: no other rank computes here."""
        return part_RV

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


def measure_model(
    folder: str | Path,
    *,
    dtype: str,
    tp: int,
    page_size: int,
    kv_dtype: str | None = None,
    codec: Codec = Codec.NONE,
    way: QuantizationWay = QuantizationWay.RESTORE,
    device: str = "cpu",
    capability: tuple[int, int] | None = None,
) -> ModelSizes:
    """Sizes of the model in `folder`, of which config.json is read.

    kv_dtype: that of cached keys and values; None: `dtype`. way, device, capability: as of
    `kept_forms`; None: of the GPU that is here, if there is one. Raises CheckpointError for a model
    that is not supported, ConfigError if its heads cannot be divided among `tp` ranks, or its pages
    not be cached so.
    """
    has_gpu = device == "cuda" and torch.cuda.is_available()
    if capability is None and has_gpu:
        capability = torch.cuda.get_device_capability()
    config = read_checkpoint_config(folder).served(way, device, capability)
    spec = config.spec
    groups = derive_kv_groups(spec.layers)
    rank = _measure_rank(spec, dtype, tp)
    whole = rank if tp == 1 else _measure_rank(spec, dtype, 1)

    return ModelSizes(
        checkpoint=config,
        layout=make_kv_layout(groups, page_size=page_size, dtype=kv_dtype or dtype, codec=codec),
        max_position_embeddings=config.max_position_embeddings,
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        rank_bytes=rank.num_bytes,
        rank_expert_bytes=rank.expert_bytes,
        all_expert_bytes=whole.expert_bytes,
        stored_bytes=stored_bytes(Path(folder)),
        num_experts=max(
            [layer.mlp.num_experts for layer in spec.layers if isinstance(layer.mlp, MoeMlpSpec)],
            default=0,
        ),
        layer_outputs=rank.layer_outputs,
        rank_expert_numbers=_expert_numbers(spec, tp),
        all_expert_numbers=_expert_numbers(spec, 1),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankSizes:
    """What is known of a rank by the shapes of its weights."""

    num_bytes: int
    expert_bytes: int
    """The bytes of routed experts among them."""
    layer_outputs: int


def _expert_numbers(spec: ModelSpec, tp: int) -> int:
    """What the products of a token's experts leave, each cut among so many ranks."""
    moes = [layer.mlp for layer in spec.layers if isinstance(layer.mlp, MoeMlpSpec)]
    return max(
        [
            mlp.experts_per_token * (-(-mlp.intermediate_size // tp) + spec.hidden_size)
            for mlp in moes
        ],
        default=0,
    )


def _measure_rank(spec: ModelSpec, dtype: str, tp: int) -> _RankSizes:
    """The sizes of one of so many ranks of a lane, which shares its experts with nobody."""
    torch_dtype: torch.dtype = getattr(torch, dtype)
    decoder = make_decoder(
        spec, device=torch.device("meta"), dtype=torch_dtype, collectives=_Part(tp)
    )
    # Parts of one parameter, such as queries and keys, have targets that are views of it.
    targets = {name: part.target for name, part in decoder.weights().items()}
    outputs: Counter[str] = Counter()
    for name, target in targets.items():
        is_matrix = name.endswith(".weight") and target.dim() > 1 and not is_of_experts(name)
        if name.startswith("layers.") and is_matrix:
            outputs[name.split(".")[1]] += target.shape[0]
    return _RankSizes(
        num_bytes=sum(target.nbytes for target in targets.values()),
        expert_bytes=sum(each.nbytes for name, each in targets.items() if is_of_experts(name)),
        layer_outputs=max(outputs.values(), default=0),
    )
