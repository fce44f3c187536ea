"""Feed-forward layers: dense, experts, or both. Each rank computes its share of a sum over ranks.

Legend: T tokens of the step, C hidden, I twice the intermediate size.
"""

from dataclasses import dataclass
from typing import Protocol, assert_never

import torch
from torch import Tensor, nn

from raydix.kernels.ops import ModelOps
from raydix.kernels.weights.linear_weight import WeightMaker
from raydix.kernels.weights.rank_share import RankShare
from raydix.kernels.weights.weight import Weight
from raydix.kernels.weights.weight_part import WeightPart, prefixed
from raydix.moe.layer import ExpertsInFlight, LayerExperts, MoeLayer, own_experts
from raydix.moe.sent_rows import SentRows
from raydix.runtime.model.decoder.rms_norm import RmsNorm
from raydix.runtime.model.spec.spec import DenseMlpSpec, MoeMlpSpec, NormSpec


class InFlight(Protocol):
    """A batch of rows between the stages of a feed-forward, each of which is called once."""

    def run_experts(self) -> None:
        """Compute, with this rank's experts, what other ranks have sent here."""

    def finish(self) -> Tensor:
        """What this rank adds to the sum over ranks, [T, C], of a single one perhaps summands."""


@dataclass(frozen=True, slots=True, eq=False)
class DenseInFlight:
    """An `InFlight` of which nothing travels."""

    out_TC: Tensor

    def run_experts(self) -> None:
        """Do nothing: no other rank has sent anything."""

    def finish(self) -> Tensor:
        """The output, which `start` has computed."""
        return self.out_TC


class DenseMlp(nn.Module):
    """Gated feed-forward; gate and up rows are stacked in one matrix.

    This rank has its share of the intermediate size.
    """

    def __init__(
        self,
        spec: DenseMlpSpec,
        hidden_size: int,
        ops: ModelOps,
        *,
        share: RankShare,
        weights: WeightMaker,
    ) -> None:
        super().__init__()
        self._ops = ops
        self._glu = spec.glu
        self._share = share
        self._whole_size = spec.intermediate_size
        size, bias = share.length(spec.intermediate_size), spec.bias
        rows = {"gate": size, "up": size}
        self.gate_up = weights.rows(rows, hidden_size, bias=bias, share=share)
        self.down = weights.columns("down", hidden_size, size, bias=bias, share=share)

    def start(self, x_TC: Tensor, sent: SentRows | None) -> DenseInFlight:
        """Compute all rows, whatever `sent` says: that is for experts."""
        # Summands are for the norm that follows, and not for other ranks.
        linear = self._ops.linear_summands if self._share.size == 1 else self._ops.linear
        return DenseInFlight(linear(self._hidden(x_TC), self.down))

    def forward(self, x_TC: Tensor) -> Tensor:
        """[T, C] in; out comes what this rank adds to the sum over ranks, [T, C]."""
        return self._ops.linear(self._hidden(x_TC), self.down)

    def _hidden(self, x_TC: Tensor) -> Tensor:
        gate_up_TI = self._ops.linear_summands(x_TC, self.gate_up)
        return self._ops.glu(gate_up_TI, self._glu)

    def weights(self) -> dict[str, WeightPart]:
        """Parts of all tensors that a checkpoint has."""
        share, size = self._share, self._whole_size
        own_size = share.length(size)
        gate, up = self.gate_up.split((own_size, own_size))
        return {
            **prefixed("down", self.down.column_parts(share, size)),
            **prefixed("gate", gate.row_parts(share, size)),
            **prefixed("up", up.row_parts(share, size)),
        }


@dataclass(frozen=True, slots=True, eq=False)
class SharedInFlight:
    """An `InFlight` of routed experts, with what the shared one has computed meanwhile."""

    routed: ExpertsInFlight
    shared_TC: Tensor

    def run_experts(self) -> None:
        """Compute, with this rank's routed experts, what other ranks have sent here."""
        self.routed.run_experts()

    def finish(self) -> Tensor:
        """The sum of what the routed experts and the shared one say."""
        return self.routed.finish() + self.shared_TC


class SharedExpertsMlp(nn.Module):
    """Routed experts, and those that every token visits: their outputs are added.

    The shared ones run while rows are dispatched.
    """

    def __init__(
        self, routed: MoeLayer, shared: DenseMlp, shared_gate: Weight | None, ops: ModelOps
    ) -> None:
        """`shared_gate`: whose product with a token, as a sigmoid, is a factor of the shared one's
        output; None: there is none.
        """
        super().__init__()
        self._ops = ops
        self.routed = routed
        self.shared = shared
        self.shared_gate = shared_gate

    def start(self, x_TC: Tensor, sent: SentRows | None) -> SharedInFlight:
        """Send the rows to the routed experts, and compute the shared one meanwhile."""
        routed = self.routed.start(x_TC, sent)
        shared_TC = self.shared(x_TC)
        if self.shared_gate is not None:
            shared_TC = self._ops.linear(x_TC, self.shared_gate).sigmoid() * shared_TC
        return SharedInFlight(routed, shared_TC)

    def weights(self) -> dict[str, WeightPart]:
        """Parts of all tensors that a checkpoint has."""
        weights = self.routed.weights() | prefixed("shared", self.shared.weights())
        if self.shared_gate is not None:
            weights |= prefixed("shared_gate", self.shared_gate.whole_parts())
        return weights


@dataclass(frozen=True, slots=True, eq=False)
class ApartInFlight:
    """An `InFlight` of routed experts and of a shared one that are not added up yet."""

    routed: ExpertsInFlight
    shared_TC: Tensor

    def run_experts(self) -> None:
        """Compute, with this rank's routed experts, what other ranks have sent here."""
        self.routed.run_experts()

    def finish(self) -> Tensor:
        """What this rank adds to sums over ranks, of the shared one, then of the others, [2T, C].

        `JoiningNorms` takes the sums.
        """
        return torch.cat((self.shared_TC, self.routed.finish()))


class ApartExpertsMlp(nn.Module):
    """Routed experts and a shared one that read the residual stream, each through its own norm.

    The shared one runs while rows are dispatched.
    """

    def __init__(
        self,
        routed: MoeLayer,
        shared: DenseMlp,
        norm: NormSpec,
        hidden_size: int,
        ops: ModelOps,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.routed = routed
        self.shared = shared
        self.router_norm, self.routed_norm, self.shared_norm = (
            RmsNorm(norm, hidden_size, ops, device=device, dtype=dtype) for _ in range(3)
        )

    def start(self, x_TC: Tensor, sent: SentRows | None) -> ApartInFlight:
        """Send the rows to the routed experts, and compute the shared one meanwhile."""
        routed = self.routed.start(self.routed_norm(x_TC), sent, scored_TC=self.router_norm(x_TC))
        return ApartInFlight(routed, self.shared(self.shared_norm(x_TC)))

    def weights(self) -> dict[str, WeightPart]:
        """Parts of all tensors that a checkpoint has."""
        return {
            **self.routed.weights(),
            **prefixed("shared", self.shared.weights()),
            "router_norm.weight": WeightPart(self.router_norm.weight),
            "routed_norm.weight": WeightPart(self.routed_norm.weight),
            "shared_norm.weight": WeightPart(self.shared_norm.weight),
        }


class JoiningNorms(nn.Module):
    """Norms what shared and routed experts say, each for itself, and adds both up."""

    def __init__(
        self,
        norm: NormSpec,
        hidden_size: int,
        ops: ModelOps,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.shared_norm, self.routed_norm = (
            RmsNorm(norm, hidden_size, ops, device=device, dtype=dtype) for _ in range(2)
        )

    def forward(self, both: Tensor) -> Tensor:
        """[2T, C] as of `ApartInFlight`, summed over ranks, in; out comes [T, C]."""
        shared_TC, routed_TC = both.chunk(2)
        return self.shared_norm(shared_TC) + self.routed_norm(routed_TC)

    def weights(self) -> dict[str, WeightPart]:
        """All tensors that a checkpoint has."""
        return {
            "shared_post_norm.weight": WeightPart(self.shared_norm.weight),
            "routed_post_norm.weight": WeightPart(self.routed_norm.weight),
        }


def make_mlp(
    spec: DenseMlpSpec | MoeMlpSpec,
    hidden_size: int,
    ops: ModelOps,
    *,
    share: RankShare,
    experts: LayerExperts | None,
    weights: WeightMaker,
) -> DenseMlp | MoeLayer | SharedExpertsMlp | ApartExpertsMlp:
    """The feed-forward of a layer. `experts`: None if the lane has them to itself, or none."""
    match spec:
        case DenseMlpSpec():
            return DenseMlp(spec, hidden_size, ops, share=share, weights=weights)
        case MoeMlpSpec():
            routed = MoeLayer(
                hidden_size,
                spec.intermediate_size,
                ops,
                num_experts=spec.num_experts,
                experts_per_token=spec.experts_per_token,
                routing=spec.routing,
                glu=spec.glu,
                bias=spec.bias,
                experts=experts or own_experts(spec.num_experts, share),
                weights=weights,
            )
            if spec.shared is None:
                return routed
            shared = DenseMlp(
                spec.shared, hidden_size, ops, share=share, weights=weights.within("shared")
            )
            if spec.own_norm is not None:
                return ApartExpertsMlp(
                    routed,
                    shared,
                    spec.own_norm,
                    hidden_size,
                    ops,
                    device=weights.device,
                    dtype=weights.dtype,
                )
            gate = weights.plain(1, hidden_size, bias=False) if spec.has_shared_gate else None
            return SharedExpertsMlp(routed, shared, gate, ops)
        case _:
            assert_never(spec)
