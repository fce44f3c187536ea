"""How the experts of a model are divided among ranks that step together."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from raydix.errors import ConfigError
from raydix.ids import LogicalExpertId
from raydix.kernels.ops import ModelOps
from raydix.kernels.weights.rank_share import RankShare
from raydix.moe.dispatch.packed import PackedDispatcher
from raydix.moe.dispatch.protocol import Dispatcher, DispatchShape
from raydix.moe.dispatch.transport import Transport
from raydix.moe.layer import LayerExperts
from raydix.moe.placement import EMPTY, Placement, initial_placement, routes
from raydix.moe.routes import DeviceRoutes
from raydix.runtime.model.spec.spec import ModelSpec, MoeMlpSpec
from raydix.runtime.tiers.expert_store import ExpertMemory


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpertRanks:
    """The ranks of a step group. All of them have the same values, but for `rank`."""

    rank: int
    """The number of this rank: its lane times the ranks of a lane, plus its rank in the lane."""
    size: int
    connect: Callable[[DispatchShape], Dispatcher]
    """Waits for every rank."""
    max_tokens: int
    """The most tokens of a rank in a dispatch, as in `DispatchShape`; so is the next."""
    max_low_latency_tokens: int
    transport: Transport = Transport.AUTO
    redundant_per_rank: int = 0
    spare_seats: int = 0
    memory: ExpertMemory | None = None
    """Where the node's store of all experts is; None: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelExperts:
    """What a rank's decoder knows of the experts of all ranks."""

    ranks: ExpertRanks
    placement: Placement
    """The placement with which the decoder starts."""
    routes: DeviceRoutes
    dispatcher: Dispatcher
    experts_per_token: int
    by_layer: dict[int, LayerExperts]
    """The experts of each layer that has some, by the layer's index in the model."""


def place_experts(
    spec: ModelSpec, ranks: ExpertRanks, ops: ModelOps, *, device: torch.device, dtype: torch.dtype
) -> ModelExperts:
    """Place experts before any demand is known, and connect with the other ranks.

    Raises ConfigError if the model has none.
    """
    layers = {i: each.mlp for i, each in enumerate(spec.layers) if isinstance(each.mlp, MoeMlpSpec)}
    num_experts, experts_per_token = expert_counts(spec, ranks.size)
    _require_use_for_seats(ranks, num_experts)

    placement = initial_placement(
        len(layers),
        num_experts,
        ranks.size,
        redundant_per_rank=ranks.redundant_per_rank,
        spare_seats=ranks.spare_seats,
    )
    even_demand_LE = np.ones((len(layers), num_experts))
    device_routes = DeviceRoutes(routes(placement, ranks.rank, even_demand_LE), device)
    shape = DispatchShape(
        num_ranks=ranks.size,
        seats_per_rank=placement.seats_per_rank,
        hidden_size=spec.hidden_size,
        experts_per_token=experts_per_token,
        max_tokens=ranks.max_tokens,
        max_low_latency_tokens=ranks.max_low_latency_tokens,
        dtype=dtype,
        transport=ranks.transport,
    )
    dispatcher = ranks.connect(shape)
    if ranks.transport is Transport.FP8:
        dispatcher = PackedDispatcher(dispatcher, ops, shape, device)

    return ModelExperts(
        ranks=ranks,
        placement=placement,
        routes=device_routes,
        dispatcher=dispatcher,
        experts_per_token=experts_per_token,
        by_layer={
            layer: LayerExperts(
                held=_held(placement, index, ranks.rank),
                share=RankShare(),
                dispatcher=dispatcher,
                routes=device_routes.layer(index),
            )
            for index, layer in enumerate(layers)
        },
    )


def expert_counts(spec: ModelSpec, num_ranks: int) -> tuple[int, int]:
    """Experts of each layer that has some, and those of a token: layers share a dispatcher.

    Raises ConfigError if the model has none, so that no ranks can share them.
    """
    moes = [each.mlp for each in spec.layers if isinstance(each.mlp, MoeMlpSpec)]
    counts = {(mlp.num_experts, mlp.experts_per_token) for mlp in moes}
    if not counts:
        raise ConfigError(
            f"parallel.ep is {num_ranks}, but the model has no experts. Set parallel.ep to 1."
        )
    # All layers have as many.
    [found] = counts
    return found


def _require_use_for_seats(ranks: ExpertRanks, num_experts: int) -> None:
    """Raise ConfigError if seats take memory that no expert could ever use."""
    # A rank never holds an expert twice; the smallest share leaves the most to hold beside it.
    others = num_experts - num_experts // ranks.size
    asked = {"redundant_per_rank": ranks.redundant_per_rank, "spare_per_rank": ranks.spare_seats}
    for name, seats in asked.items():
        if seats > others:
            raise ConfigError(
                f"experts.{name} is {seats}; expected at most {others}: of {num_experts} experts "
                f"a rank's own share is {num_experts // ranks.size} or more, and it holds none "
                f"twice. Set experts.{name} to {others} or less."
            )


def _held(placement: Placement, layer: int, rank: int) -> tuple[LogicalExpertId | None, ...]:
    """What the seats of a rank hold."""
    seats = placement.seats_per_rank
    held = placement.experts_LP[layer, rank * seats : (rank + 1) * seats].tolist()
    return tuple(None if expert == EMPTY else LogicalExpertId(expert) for expert in held)
