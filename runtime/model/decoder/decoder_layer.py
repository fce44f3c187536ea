"""One layer of the decoder, in stages between which another batch finds room.

Legend: T tokens of the batch, C hidden.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from torch import nn

from raydix.kernels.ops import ModelOps
from raydix.kernels.weights.linear_weight import WeightMaker
from raydix.kernels.weights.rank_share import RankShare
from raydix.kernels.weights.weight_part import WeightPart, prefixed
from raydix.moe.layer import LayerExperts
from raydix.moe.sent_rows import SentRows
from raydix.runtime.model.collectives.protocol import Collectives
from raydix.runtime.model.decoder.attention import Attention, AttentionBatch
from raydix.runtime.model.decoder.gated_delta import GatedDelta
from raydix.runtime.model.decoder.latent_attention import LatentAttention
from raydix.runtime.model.decoder.layer_end import OutputScale
from raydix.runtime.model.decoder.layer_inputs import InputGate
from raydix.runtime.model.decoder.mlp import InFlight, JoiningNorms, make_mlp
from raydix.runtime.model.decoder.residual_stream import ResidualStream
from raydix.runtime.model.decoder.rms_norm import RmsNorm
from raydix.runtime.model.spec.kv_groups import KvPlace
from raydix.runtime.model.spec.spec import (
    AttentionSpec,
    GatedDeltaSpec,
    LatentAttentionSpec,
    LayerSpec,
    Mixer,
    NormSpec,
)


@dataclass(frozen=True, slots=True, eq=False)
class LayerInFlight:
    """A batch between the stages of a layer, each of which is called once."""

    mlp: InFlight
    stream: ResidualStream
    collectives: Collectives
    joining_norms: JoiningNorms | None
    post_norm: RmsNorm | None
    endings: tuple[InputGate | OutputScale, ...]

    def run_experts(self) -> None:
        """Compute what other ranks have sent here, and start sending it back."""
        self.mlp.run_experts()

    def finish(self) -> None:
        """Add what the feed-forward says to the stream."""
        out_TC = self.collectives.sum(self.mlp.finish())
        if self.joining_norms is not None:
            out_TC = self.joining_norms(out_TC)
        self.stream.add(out_TC if self.post_norm is None else self.post_norm(out_TC))
        for ending in self.endings:
            ending(self.stream)


class DecoderLayer(nn.Module):
    """Normed attention and feed-forward with residual connections. `group`: its KV group.

    A batch goes through it in three stages: `start`, and the two of what that returns.
    """

    def __init__(
        self,
        spec: LayerSpec,
        hidden_size: int,
        place: KvPlace,
        ops: ModelOps,
        *,
        rope: int,
        collectives: Collectives,
        experts: LayerExperts | None,
        input_gate: InputGate | None,
        weights: WeightMaker,
    ) -> None:
        super().__init__()
        device, dtype = weights.device, weights.dtype
        self.group = place.group
        self._collectives = collectives
        share = RankShare(collectives.rank, collectives.size)

        def make_norm(norm: NormSpec | None) -> RmsNorm | None:
            if norm is None:
                return None
            return RmsNorm(norm, hidden_size, ops, device=device, dtype=dtype)

        self.attention_norm = make_norm(spec.norm)
        self.attention = _make_attention(
            spec.attention,
            hidden_size,
            place.layer_in_group,
            ops,
            rope=rope,
            collectives=collectives,
            weights=weights.within("attention"),
        )
        self.mlp_norm = make_norm(spec.mlp_norm)
        self.mlp = make_mlp(
            spec.mlp,
            hidden_size,
            ops,
            share=share,
            experts=experts,
            weights=weights.within("mlp"),
        )

        self.joining_norms: JoiningNorms | None = None
        if spec.own_mlp_norm is not None:
            self.joining_norms = JoiningNorms(
                spec.own_mlp_norm, hidden_size, ops, device=device, dtype=dtype
            )
        self.attention_post_norm = make_norm(spec.post_norm)
        self.mlp_post_norm = make_norm(spec.post_norm)
        self.input_gate = input_gate
        self.scale = OutputScale(device=device, dtype=dtype) if spec.has_output_scale else None
        self._endings = tuple(each for each in (input_gate, self.scale) if each is not None)

    def start(
        self,
        stream: ResidualStream,
        batch: AttentionBatch,
        before_cache: Callable[[], None] | None,
        sent: SentRows | None,
    ) -> "LayerInFlight":
        """Add what attention says to the stream; then rows leave for the experts.

        For `before_cache` see `Attention`, for `sent` `MoeLayer`.
        """
        normed_TC = stream.normed(self.attention_norm)
        part_TC = self.attention(normed_TC, batch, batch.groups[self.group], before_cache)
        out_TC = self._collectives.sum(part_TC)
        if self.attention_post_norm is not None:
            out_TC = self.attention_post_norm(out_TC)
        stream.add(out_TC)

        in_flight = self.mlp.start(stream.normed(self.mlp_norm), sent)
        return LayerInFlight(
            in_flight,
            stream,
            self._collectives,
            self.joining_norms,
            self.mlp_post_norm,
            self._endings,
        )

    def weights(self) -> dict[str, WeightPart]:
        """Parts of all tensors that a checkpoint has."""
        norms = {
            "attention_norm": self.attention_norm,
            "attention_post_norm": self.attention_post_norm,
            "mlp_norm": self.mlp_norm,
            "mlp_post_norm": self.mlp_post_norm,
        }
        whole = {name: WeightPart(norm.weight) for name, norm in norms.items() if norm is not None}
        return {
            **{f"{name}.weight": part for name, part in whole.items()},
            **prefixed("attention", self.attention.weights()),
            **prefixed("mlp", self.mlp.weights()),
            **({} if self.joining_norms is None else self.joining_norms.weights()),
            **({} if self.input_gate is None else prefixed("input", self.input_gate.weights())),
            **({} if self.scale is None else self.scale.weights()),
        }


def _make_attention(
    spec: Mixer,
    hidden_size: int,
    layer_in_group: int,
    ops: ModelOps,
    *,
    rope: int,
    collectives: Collectives,
    weights: WeightMaker,
) -> Attention | LatentAttention | GatedDelta:
    match spec:
        case AttentionSpec():
            return Attention(
                spec,
                hidden_size,
                layer_in_group,
                ops,
                rope=rope,
                collectives=collectives,
                weights=weights,
            )
        case LatentAttentionSpec():
            return LatentAttention(
                spec,
                hidden_size,
                layer_in_group,
                ops,
                rope=rope,
                share=RankShare(collectives.rank, collectives.size),
                weights=weights,
            )
        case GatedDeltaSpec():
            return GatedDelta(
                spec,
                hidden_size,
                layer_in_group,
                ops,
                share=RankShare(collectives.rank, collectives.size),
                weights=weights,
            )
        case _:
            assert_never(spec)
