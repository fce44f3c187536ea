"""The decoder of all families: embedding, layers of attention and feed-forward, final norm, head.

Legend: T tokens of the step, R sampled rows, C hidden, V vocabulary.
"""

from collections.abc import Callable, Collection, Sequence
from typing import assert_never, cast

import torch
from torch import Tensor, nn

from raydix.kernels.attention.rows import PrefillRow
from raydix.kernels.ops import ChooseOps, ModelOps, choose_ops
from raydix.kernels.weights.int4_weight import ZERO_POINT
from raydix.kernels.weights.linear_weight import WeightMaker
from raydix.kernels.weights.rank_share import RankShare
from raydix.kernels.weights.scaled_weight import SCALE
from raydix.kernels.weights.weight import Weight, empty_weight
from raydix.kernels.weights.weight_part import WeightPart, prefixed
from raydix.moe.dispatch.protocol import DispatchForm
from raydix.moe.dispatch.transport import Transport
from raydix.runtime.config.kv_layout import KvGroup
from raydix.runtime.model.collectives.alone import ALONE
from raydix.runtime.model.collectives.protocol import Collectives
from raydix.runtime.model.decoder.decoder_layer import DecoderLayer
from raydix.runtime.model.decoder.embedding import Embedding
from raydix.runtime.model.decoder.expert_ranks import ExpertRanks, ModelExperts, place_experts
from raydix.runtime.model.decoder.in_turns import MicroBatch, run_in_turns
from raydix.runtime.model.decoder.latent_attention import pays_to_expand
from raydix.runtime.model.decoder.layer_inputs import InputGate, LayerInputs
from raydix.runtime.model.decoder.residual_stream import ResidualStream
from raydix.runtime.model.decoder.rms_norm import RmsNorm
from raydix.runtime.model.decoder.rope import RotaryEmbedding
from raydix.runtime.model.spec.kv_groups import KvGrouping, derive_kv_groups, kv_places
from raydix.runtime.model.spec.rope_spec import Rope
from raydix.runtime.model.spec.spec import (
    AttentionSpec,
    GatedDeltaSpec,
    LatentAttentionSpec,
    LayerSpec,
    ModelSpec,
    MoeMlpSpec,
)


class Decoder(nn.Module):
    """The model, or a rank's part of it, on one device.

    Its parameters are uninitialised until weights are loaded. Its ranks meet in `forward` and
    `logits` alone, which all of them call with the same arguments. `kv_groups` say which layers
    share a pool; the pools are the caller's. `experts`: None if the lane has them to itself.
    """

    def __init__(
        self,
        spec: ModelSpec,
        kv_groups: tuple[KvGroup, ...],
        ops: ModelOps,
        *,
        collectives: Collectives,
        experts: ModelExperts | None,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.kv_groups = kv_groups
        self.ops = ops
        self.collectives = collectives
        self.experts = experts
        self._share = RankShare(collectives.rank, collectives.size)
        self.device = device
        self.dtype = dtype
        self.embedding = Embedding(
            spec.vocab_size,
            spec.hidden_size,
            spec.embedding_scale,
            collectives,
            device=device,
            dtype=dtype,
        )
        self.layer_inputs = None
        if spec.layer_inputs is not None:
            self.layer_inputs = LayerInputs(
                spec.layer_inputs, spec, ops, collectives=collectives, device=device, dtype=dtype
            )
        places, ropes = kv_places(spec.layers, kv_groups), _distinct_ropes(spec)
        self.layers = nn.ModuleList(
            DecoderLayer(
                layer,
                spec.hidden_size,
                places[i],
                ops,
                rope=_rope_index(ropes, layer),
                collectives=collectives,
                experts=None if experts is None else experts.by_layer.get(i),
                input_gate=self._input_gate(i),
                weights=WeightMaker(device=device, dtype=dtype, forms=layer.forms),
            )
            for i, layer in enumerate(spec.layers)
        )
        self.norm = RmsNorm(spec.final_norm, spec.hidden_size, ops, device=device, dtype=dtype)
        # Tied weights are one under two names.
        self.head = self.embedding.table if spec.tied_embeddings else self._head()
        self.rotaries = tuple(RotaryEmbedding(rope, size, device) for rope, size in ropes)
        """The distinct ones, in the order of their first layers."""

    def forward(
        self, batches: Sequence[MicroBatch], on_layer: Callable[[int], None] | None = None
    ) -> list[Tensor]:
        """Run a step, whole or as two micro-batches, and return their final hidden states [T, C].

        Keys and values go to the pools of the batches. `on_layer(i)` is called before layer i
        reads or writes cached KV, once for each batch.
        """
        streams = [self._embed(batch.token_ids_T) for batch in batches]
        layers = cast("list[DecoderLayer]", list(self.layers))
        run_in_turns(layers, batches, streams, on_layer)
        return [stream.normed(self.norm) for stream in streams]

    def weights(self) -> dict[str, WeightPart]:
        """Parts of all tensors that a checkpoint has, by name.

        `families.weight_names` tells what checkpoints call them.
        """
        vocab_size = self.spec.vocab_size
        weights = {
            **prefixed("embedding", self.embedding.weights()),
            "norm.weight": WeightPart(self.norm.weight),
        }
        if not self.spec.tied_embeddings:
            weights |= prefixed("head", self.head.row_parts(self._share, vocab_size))
        if self.layer_inputs is not None:
            weights |= prefixed("layer_inputs", self.layer_inputs.weights())

        for index, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer), "a list of modules forgets their type"
            weights |= prefixed(f"layers.{index}", layer.weights())
        return weights

    @property
    def scaled_names(self) -> tuple[str, ...]:
        """The names of what is float8 or of four bits, sorted: the same on all ranks."""
        return self._names_before(f".{SCALE}")

    @property
    def int4_names(self) -> tuple[str, ...]:
        """The names of the weights that are of four bits, sorted."""
        return self._names_before(f".{ZERO_POINT}")

    @property
    def is_capturable(self) -> bool:
        """May a step be captured in a CUDA graph?"""
        experts = self.experts
        return (
            self.ops.is_capturable
            and self.collectives.is_capturable
            and (experts is None or DispatchForm.LOW_LATENCY in experts.dispatcher.captured_forms)
        )

    @property
    def packs_rows(self) -> bool:
        """Are rows rounded on their way to the ranks of their experts?"""
        return self.experts is not None and self.experts.ranks.transport is Transport.FP8

    @property
    def has_latents(self) -> bool:
        """Do some layers keep latents, which long rows expand?"""
        return any(isinstance(layer.attention, LatentAttentionSpec) for layer in self.spec.layers)

    @property
    def has_states(self) -> bool:
        """Do some layers keep a state in place of keys and values?"""
        return any(isinstance(layer.attention, GatedDeltaSpec) for layer in self.spec.layers)

    def keep_layers(self, chosen: Collection[int]) -> None:
        """Leave out all other layers: what then runs is a part of every step, with its shapes."""
        self.layers = nn.ModuleList(self.layers[index] for index in sorted(chosen))

    def close(self) -> None:
        """End what connects the ranks, from any thread: none waits for another any longer."""
        self.collectives.close()
        if self.experts is not None:
            self.experts.dispatcher.close()

    def divide_rows(
        self, rows: Sequence[PrefillRow]
    ) -> tuple[tuple[PrefillRow, ...], tuple[PrefillRow, ...]]:
        """Rows to be cut into tiles, and `AttentionRows.expanded`, of a step with these rows."""
        latents = [each.attention for each in self.spec.layers]
        spec = next((each for each in latents if isinstance(each, LatentAttentionSpec)), None)
        expanded = tuple(row for row in rows if spec is not None and pays_to_expand(spec, row))
        return tuple(row for row in rows if row not in expanded), expanded

    def logits(self, hidden_RC: Tensor) -> Tensor:
        """Raw logits [R, V] of the given rows of `forward`'s result, in the model's dtype."""
        logits_RV = self.collectives.gather(self.ops.linear(hidden_RC, self.head))
        # The last ranks' parts may go on past the end of the vocabulary.
        logits_RV = logits_RV[:, : self.spec.vocab_size].contiguous()
        cap = self.spec.logits_soft_cap
        return logits_RV if cap is None else (logits_RV / cap).tanh_().mul_(cap)

    def _names_before(self, end: str) -> tuple[str, ...]:
        """Names of weights that have a tensor with this end."""
        return tuple(
            sorted(name.removesuffix(end) for name in self.weights() if name.endswith(end))
        )

    def _embed(self, token_ids_T: Tensor) -> ResidualStream:
        embedded_TC = self.embedding(token_ids_T)
        if self.layer_inputs is None:
            return ResidualStream(embedded_TC)
        return ResidualStream(embedded_TC, self.layer_inputs(token_ids_T, embedded_TC))

    def _input_gate(self, layer: int) -> InputGate | None:
        spec = self.spec.layer_inputs
        if spec is None:
            return None
        hidden_size, device, dtype = self.spec.hidden_size, self.device, self.dtype
        return InputGate(spec, hidden_size, layer, self.ops, device=device, dtype=dtype)

    def _head(self) -> Weight:
        num_rows = self._share.length(self.spec.vocab_size)
        return empty_weight(
            num_rows, self.spec.hidden_size, bias=False, device=self.device, dtype=self.dtype
        )


def make_decoder(
    spec: ModelSpec,
    *,
    device: torch.device,
    dtype: torch.dtype,
    collectives: Collectives = ALONE,
    expert_ranks: ExpertRanks | None = None,
    group_layers: KvGrouping = derive_kv_groups,
    choose: ChooseOps = choose_ops,
) -> Decoder:
    """A rank's decoder with the fastest operations that the device has for it.

    `expert_ranks`: None if the lane has all experts to itself; else it waits for those ranks.
    `group_layers`: see `derive_kv_groups`. `choose` chooses the operations. Raises ConfigError if
    the model cannot be divided among so many ranks.
    """
    share = RankShare(collectives.rank, collectives.size)
    ops = choose(
        device,
        dtype,
        head_counts={_head_counts(each, share) for each in _attentions(spec)},
        head_dims={each.head_dim for each in _attentions(spec) if isinstance(each, AttentionSpec)},
        expert_sizes=_expert_sizes(spec, share if expert_ranks is None else RankShare()),
    )

    kv_groups = group_layers(spec.layers)
    experts = None
    if expert_ranks is not None:
        experts = place_experts(spec, expert_ranks, ops, device=device, dtype=dtype)
    return Decoder(
        spec,
        kv_groups,
        ops,
        collectives=collectives,
        experts=experts,
        device=device,
        dtype=dtype,
    )


def _attentions(spec: ModelSpec) -> list[AttentionSpec | LatentAttentionSpec]:
    """The specs of the layers that attend to keys and values."""
    mixers = [layer.attention for layer in spec.layers]
    return [each for each in mixers if not isinstance(each, GatedDeltaSpec)]


def _head_counts(
    attention: AttentionSpec | LatentAttentionSpec, share: RankShare
) -> tuple[int, int]:
    """Query and KV heads of a layer that a rank has."""
    num_heads = len(share.heads(attention.num_heads))
    match attention:
        case AttentionSpec():
            return num_heads, len(share.kv_heads(attention.num_kv_heads))
        case LatentAttentionSpec():
            return num_heads, 1
        case _:
            assert_never(attention)


def _distinct_ropes(spec: ModelSpec) -> list[tuple[Rope, int]]:
    """Rotary embeddings and how many dimensions they rotate, in the order of first layers."""
    return list(dict.fromkeys(_rope_of(each) for each in _attentions(spec)))


def _rope_index(ropes: list[tuple[Rope, int]], layer: LayerSpec) -> int:
    """The place of a layer's rotary embedding among those of the model; 0 if it has none."""
    attention = layer.attention
    return 0 if isinstance(attention, GatedDeltaSpec) else ropes.index(_rope_of(attention))


def _rope_of(attention: AttentionSpec | LatentAttentionSpec) -> tuple[Rope, int]:
    match attention:
        case AttentionSpec():
            return attention.rope, attention.rotary_dim or attention.head_dim
        case LatentAttentionSpec():
            return attention.rope, attention.qk_rope_head_dim
        case _:
            assert_never(attention)


def _expert_sizes(spec: ModelSpec, share: RankShare) -> tuple[int, ...]:
    sizes = {
        share.length(layer.mlp.intermediate_size)
        for layer in spec.layers
        if isinstance(layer.mlp, MoeMlpSpec)
    }
    return (spec.hidden_size, *sizes) if sizes else ()
