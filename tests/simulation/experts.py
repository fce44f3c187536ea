"""The experts of a modelled rank: what each seat holds, and where its rows are sent.

Legend: L layers with experts, E experts, R ranks of the step group.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from raydix.moe.placement import EMPTY, Placement, initial_placement, routes
from raydix.runtime.messages.arrays import Int32Array, empty, int32_array
from raydix.runtime.messages.plan import ExpertCopies, PlacementChange
from raydix.runtime.scheduler.settings import ExpertSettings

_BEING_WRITTEN = -2
_SKEW_S = 0.7
"""The time for which the same experts are the popular ones."""


class LostExpert(AssertionError):
    """A row was sent to a seat that holds another expert than it wants."""


class ExpertCopy(NamedTuple):
    """An expert on its way from the store into a seat of this rank."""

    copy_id: int
    layer: int
    seat: int
    expert: int


class SimulatedExperts:
    """Owns: what one rank's seats hold, its routes, and its counts of rows.

    A step reads every seat that rows of any rank are sent to, from its start, when all ranks have
    come to it, until this rank has done it.
    """

    def __init__(self, settings: ExpertSettings, rank: int) -> None:
        """`rank`: within the step group."""
        self._settings = settings
        self._rank = rank
        self._initial = initial_placement(
            settings.num_layers,
            settings.num_experts,
            settings.facts.num_ranks,
            redundant_per_rank=settings.redundant_per_rank,
            spare_seats=settings.facts.spare_per_rank,
        )
        self._num_steps = 0
        self._demand_LE = np.zeros((settings.num_layers, settings.num_experts), np.int32)
        self._read: defaultdict[int, set[tuple[int, int, int]]] = defaultdict(set)
        """Layer, seat, and the expert that it has to hold, by step."""
        self.num_copies = 0
        self._copied: list[int] = []
        self.restore()

    def restore(self) -> None:
        """Go back to the start; nobody reads a seat of this rank."""
        seats = self._initial.seats_per_rank
        own = slice(self._rank * seats, (self._rank + 1) * seats)
        self.held = self._initial.experts_LP[:, own].tolist()
        """The expert in each seat, by layer."""
        found = routes(self._initial, self._rank, np.ones(self._demand_LE.shape))
        self._table_LER, self._counts_LE = found.table_LER.copy(), found.counts_LE.copy()
        self._demand_LE[:] = 0
        self._num_steps = 0
        self._copied.clear()
        self._read.clear()

    def begin_copies(self, copies: ExpertCopies) -> list[ExpertCopy]:
        """Begin the copies of this rank: their seats hold nothing of use any more."""
        columns = (copies.copy_ids, copies.layers, copies.seats, copies.experts, copies.ranks)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        own = [ExpertCopy(*row[:4]) for row in rows if row[4] == self._rank]
        for copy in own:
            self.held[copy.layer][copy.seat] = _BEING_WRITTEN
        return own

    def end_copy(self, copy: ExpertCopy) -> None:
        """All bytes of the expert are there."""
        self.held[copy.layer][copy.seat] = copy.expert
        self.num_copies += 1
        self._copied.append(copy.copy_id)

    def take_copied(self) -> Int32Array:
        """Copies that have ended since the last time."""
        copied = int32_array(self._copied)
        self._copied.clear()
        return copied

    def put(self, change: PlacementChange) -> None:
        """Rows of the plan that brought this go by it already."""
        num_layers = len(change.layers)
        placement = Placement(
            change.experts.reshape(num_layers, -1),
            self._settings.num_experts,
            self._settings.facts.num_ranks,
        )
        found = routes(placement, self._rank, change.demand.reshape(num_layers, -1))
        self._table_LER[change.layers] = found.table_LER
        self._counts_LE[change.layers] = found.counts_LE

    def send_rows(
        self, step: int, hashes: Iterable[int], peers: Sequence["SimulatedExperts"], now_s: float
    ) -> None:
        """Rows of a step are sent; its ranks will have read their seats when they are done."""
        for row, value in enumerate(hashes):
            for layer, expert in self._choose(value, now_s):
                self._demand_LE[layer, expert] += 1
                entry = row % self._counts_LE[layer, expert]
                physical = int(self._table_LER[layer, expert, entry])
                assert physical != EMPTY, f"expert {expert} has no route on rank {self._rank}"
                rank, seat = divmod(physical, self._initial.seats_per_rank)
                peers[rank].expect(step, layer, seat, expert)

    def expect(self, step: int, layer: int, seat: int, expert: int) -> None:
        """Rows are sent to a seat of this rank."""
        self._read[step].add((layer, seat, expert))
        self._check(layer, seat, expert)

    def end_step(self, step: int, is_met: bool) -> Int32Array:
        """Note that the rank has done a step. Returns the demand when it is due."""
        for read in self._read.pop(step, ()):
            self._check(*read)
        self._num_steps += is_met
        if not is_met or self._num_steps % self._settings.load_interval_steps:
            return empty()
        demand = int32_array(self._demand_LE.reshape(-1))
        self._demand_LE[:] = 0
        return demand

    def _choose(self, value: int, now_s: float) -> Iterator[tuple[int, int]]:
        """Two experts of each layer for a token. Which are popular changes with time."""
        num_experts = self._settings.num_experts
        for layer in range(self._settings.num_layers):
            popular = int(now_s / _SKEW_S) * (layer + 1)
            for choice in range(2):
                draw = hash((value, layer, choice)) % (num_experts * num_experts)
                # The square root of an even draw: the higher, the likelier.
                yield layer, (int(draw**0.5) + popular) % num_experts

    def _check(self, layer: int, seat: int, expert: int) -> None:
        held = self.held[layer][seat]
        if held != expert:
            raise LostExpert(
                f"rank {self._rank}, layer {layer}, seat {seat} holds {held}; rows want {expert}"
            )
