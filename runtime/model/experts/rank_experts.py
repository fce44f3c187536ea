"""What a rank does about experts beside its steps: take up routes, move experts, count their rows.

Legend: L layers with experts, E logical experts, X layers whose routes change, P seats of all
ranks.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raydix.ids import LogicalExpertId
from raydix.moe.placement import EMPTY, Placement, routes
from raydix.runtime.messages.arrays import Int32Array, empty, int32_array
from raydix.runtime.messages.plan import ExpertCopies, PlacementChange, StepPlan
from raydix.runtime.model.decoder.expert_ranks import ModelExperts
from raydix.runtime.model.experts.expert_mover import ExpertMove, ExpertMover
from raydix.runtime.model.experts.stored_experts import StoredExperts
from raydix.runtime.model.staging.pinned_copies import PinnedCopies


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedDemand:
    """Counts on their way to the host; on cuda in pinned memory, valid once `ready` has passed."""

    demand_LE: Tensor
    ready: torch.cuda.Event | None

    def to_column(self) -> Int32Array:
        """Wait for them. All layers one after another."""
        if self.ready is not None:
            self.ready.synchronize()
        return int32_array(self.demand_LE.flatten().numpy())


class RankExperts:
    """Owns: the rank's mover.

    Everything here but `take_copied`, `drain` and `close` happens in the thread that launches
    steps.
    """

    def __init__(
        self,
        experts: ModelExperts,
        stored: StoredExperts | None,
        device: torch.device,
        *,
        load_interval_steps: int,
        on_error: Callable[[BaseException], None],
    ) -> None:
        """`on_error`: see `ExpertMover`. Without `stored` experts cannot move."""
        self._experts = experts
        self._stored = stored
        self._device = device
        self._copies = PinnedCopies(device)
        self._load_interval_steps = load_interval_steps
        self._num_steps = 0
        self._mover = None if stored is None else ExpertMover(stored, on_error)

    @torch.inference_mode()
    def apply(self, plan: StepPlan) -> None:
        """Take up the plan's placement, for its own rows already, and start this rank's copies."""
        if plan.placement is not None:
            self._put(plan.placement)
        if self._mover is not None and len(plan.expert_copies):
            self._mover.start(self._own_moves(plan.expert_copies))

    @torch.inference_mode()
    def after_step(self) -> CountedDemand | None:
        """Note that a step with rows or padding is enqueued. Returns the demand when it is due."""
        self._num_steps += 1
        if self._num_steps % self._load_interval_steps:
            return None

        demand_LE = self._copies.to_host(self._experts.routes.take_demand())
        ready = torch.cuda.Event() if self._device.type == "cuda" else None
        if ready is not None:
            ready.record()
        return CountedDemand(demand_LE=demand_LE, ready=ready)

    def take_copied(self) -> Int32Array:
        """Copies of plans that have landed since the last time; from any thread."""
        return empty() if self._mover is None else self._mover.take_copied()

    @torch.inference_mode()
    def restore(self) -> None:
        """Go back to the placement at the start, with no demand counted; no step may be in flight.

        Whoever plans next knows no other. Returns once every expert is in its place.
        """
        if self._mover is not None:
            # First what is ordered: it changes what seats hold.
            self._mover.drain()
            self._mover.start(self._moves_back())
            self._mover.drain()
            self._mover.take_copied()

        placement = self._experts.placement
        even_demand_LE = np.ones((placement.num_layers, placement.num_experts), np.int32)
        self._put(
            PlacementChange(
                version=0,
                layers=int32_array(range(placement.num_layers)),
                experts=int32_array(placement.experts_LP.reshape(-1)),
                demand=int32_array(even_demand_LE.reshape(-1)),
            )
        )
        self._experts.routes.take_demand()
        self._num_steps = 0

    def drain(self) -> None:
        """Wait until all copies begun so far have ended."""
        if self._mover is not None:
            self._mover.drain()

    def close(self) -> None:
        """End the mover."""
        if self._mover is not None:
            self._mover.close()

    def _put(self, change: PlacementChange) -> None:
        """Derive this rank's routes and enqueue a copy of them."""
        initial = self._experts.placement
        num_layers, num_experts = len(change.layers), initial.num_experts
        experts_XP = change.experts.reshape(num_layers, -1)
        placement = Placement(experts_XP, num_experts, initial.num_ranks)
        demand_XE = change.demand.reshape(num_layers, num_experts)
        found = routes(placement, self._experts.ranks.rank, demand_XE)

        [columns] = self._copies.to_device(
            {
                "layers_X": change.layers.astype(np.int64),
                "table_XER": found.table_LER.astype(np.int64),
                "counts_XE": found.counts_LE.astype(np.int64),
            }
        )
        self._experts.routes.put(columns["layers_X"], columns["table_XER"], columns["counts_XE"])

    def _own_moves(self, copies: ExpertCopies) -> Iterator[ExpertMove]:
        for index in np.flatnonzero(copies.ranks == self._experts.ranks.rank):
            yield ExpertMove(
                layer=int(copies.layers[index]),
                expert=LogicalExpertId(int(copies.experts[index])),
                seat=int(copies.seats[index]),
                copy_id=int(copies.copy_ids[index]),
            )

    def _moves_back(self) -> Iterator[ExpertMove]:
        """The copies to every seat that holds something else than at the start."""
        assert self._stored is not None, "what moves has a store"
        placement, rank = self._experts.placement, self._experts.ranks.rank
        own = slice(rank * placement.seats_per_rank, (rank + 1) * placement.seats_per_rank)
        for layer, experts in enumerate(placement.experts_LP[:, own].tolist()):
            for seat, (now, first) in enumerate(
                zip(self._stored.held(layer), experts, strict=True)
            ):
                if first not in (EMPTY, now):
                    yield ExpertMove(layer, LogicalExpertId(first), seat)
