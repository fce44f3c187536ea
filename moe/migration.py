"""Bring experts from one placement to another between steps, without a pause: decisions alone.

Events come in (a step is planned, copies have landed, a rank has finished a step), orders go out.
Weights come from a store that every rank of the node reads, so a copy has a target and no source.
A seat is written while no rank routes to it, and routed to once its copy has landed; the seats that
a flip leaves are written again only when every rank has finished the step that carried it. So ranks
may flip at different times: every version in use leads to copies that are there.
"""

import itertools
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from raydix.errors import AccountingError
from raydix.moe.placement import EMPTY, Placement
from raydix.moe.relocations import Relocation, relocations

_LOOK_AHEAD = 64
"""The most relocations that a step tries until one can begin: it must not wait for long plans."""
_MORE_AHEAD = 8
"""The number by which the relocations that a step tries may grow at a time."""


@dataclass(frozen=True, slots=True)
class Copy:
    """Read one expert of one layer from the host store into an empty seat."""

    layer: int
    expert: int
    physical: int


@dataclass(frozen=True, slots=True, eq=False)
class Flip:
    """A change of routes: from its step on, `placement` holds, which differs in `layers`."""

    version: int
    placement: Placement
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Orders:
    """What one step's plan carries to all ranks. A rank flips before it runs that step."""

    copies: tuple[Copy, ...] = ()
    flip: Flip | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """How much each rank copies beside its steps."""

    max_copies_per_step: int = 2
    """The number of copies to one rank that may begin with one step."""
    max_open_copies: int = 4
    """The number of copies to one rank that may be ordered and not yet acknowledged."""

    def __post_init__(self) -> None:
        if min(self.max_copies_per_step, self.max_open_copies) < 1:
            raise ValueError(f"{self}: a migration needs at least one copy at a time")


class _Seat(IntEnum):
    FREE = 0
    LIVE = 1
    """The newest version of the placement routes to the seat."""
    FILLING = 2
    """A relocation that has begun is copying an expert into the seat."""
    RETIRED = 3
    """The version before the newest, which some rank may still use, routes to the seat."""


@dataclass(slots=True, eq=False)
class _Begun:
    relocation: Relocation
    copies: tuple[Copy, ...]
    landed: set[Copy] = field(default_factory=set)


class Migration:
    """Owns: which seats are live, being filled or not yet free, and the placement's version.

    It is for one life of the ranks' processes. `placement` and `version` are the newest that a flip
    has named.
    """

    def __init__(self, placement: Placement, *, version: int = 0, pacing: Pacing) -> None:
        self.placement = placement
        self.version = version
        self.num_copies = 0
        self.num_flips = 0
        self._pacing = pacing
        self._states_LP = np.where(placement.experts_LP != EMPTY, _Seat.LIVE, _Seat.FREE).astype(
            np.int8
        )
        self._to_come: Iterator[Relocation] = iter(())
        """The relocations of the plan that come after those in `_waiting`."""
        self._waiting: deque[Relocation] = deque()
        """The relocations to try next: as many as a step tries, while the plan has so many."""
        self._num_unbegun = 0
        """The number of copies in the relocations that have not begun."""
        self._begun: list[_Begun] = []
        self._unsent: deque[Copy] = deque()
        self._open: dict[Copy, _Begun] = {}
        """The copies that are ordered and not acknowledged, with the relocation of each."""
        self._flip_step: int | None = None
        """The step of the one flip that some rank may not have made yet."""
        self._flipped: set[int] = set()
        """The ranks that have made the flip of `_flip_step`."""

    @property
    def is_open(self) -> bool:
        """Is any part of a plan still to be done?"""
        return bool(self._waiting or self._begun or self._flip_step is not None)

    @property
    def num_copies_left(self) -> int:
        """Copies of the plan that have not landed."""
        return self._num_unbegun + len(self._unsent) + len(self._open)

    def start(self, wanted: Placement) -> int:
        """Take up a plan; returns how many copies it needs.

        Raises ValueError while one is open, and if a rank has no room to add before it removes: it
        needs an empty seat in both placements.
        """
        if self.is_open:
            raise ValueError("a plan is open; start the next when it has ended")
        to_come = relocations(self.placement, wanted)

        is_added_LRE = (wanted.physical_LRE != EMPTY) & (self.placement.physical_LRE == EMPTY)
        has_room_LR = np.minimum(self.placement.num_empty_LR, wanted.num_empty_LR) > 0
        lacking = np.argwhere(is_added_LRE & ~has_room_LR[..., None])
        if len(lacking):
            layer, rank, expert = lacking[0].tolist()
            raise ValueError(
                f"layer {layer}: rank {rank} has no empty seat for expert {expert}. "
                f"Leave a spare seat of every rank empty in every layer."
            )

        self._to_come, self._num_unbegun = to_come, int(is_added_LRE.sum())
        self._look_ahead(0)
        return self.num_copies_left

    def plan_step(self, step: int) -> Orders:
        """The orders that are sent with `step`, which is being planned for all ranks."""
        self._begin()
        return Orders(
            copies=self._send(), flip=self._flip(step) if self._flip_step is None else None
        )

    def copied(self, rank: int, copies: tuple[Copy, ...]) -> None:
        """Note that copies into a rank's seats are done: the weights are there for every stream."""
        for copy in copies:
            begun = self._open.pop(copy, None)
            if begun is None or self._rank_of(copy) != rank:
                raise AccountingError(f"rank {rank} acknowledges {copy}, which it does not owe")
            begun.landed.add(copy)

    def finished(self, rank: int, step: int) -> None:
        """Note that a rank has finished `step` and all before it, so it has made their flips."""
        if self._flip_step is None or step < self._flip_step:
            return
        self._flipped.add(rank)
        if self._have_all_flipped():
            self._states_LP[self._states_LP == _Seat.RETIRED] = _Seat.FREE
            self._flip_step = None
            self._flipped.clear()

    def check(self) -> None:
        """Raise AccountingError unless seats are in the states that open work says."""
        filling = [(copy.layer, copy.physical) for begun in self._begun for copy in begun.copies]
        found = {
            "live": ((self._states_LP == _Seat.LIVE) != (self.placement.experts_LP != EMPTY)).any(),
            "filling": sorted(filling)
            != [tuple(at) for at in np.argwhere(self._states_LP == _Seat.FILLING).tolist()],
            "retired": self._flip_step is None and (self._states_LP == _Seat.RETIRED).any(),
            "copies": sum(len(begun.copies) - len(begun.landed) for begun in self._begun)
            != len(self._unsent) + len(self._open),
        }
        wrong = [name for name, is_wrong in found.items() if is_wrong]
        if wrong:
            raise AccountingError(f"seats do not agree with the open work: {wrong}")

    def _look_ahead(self, num_begun: int) -> None:
        """Look at some more relocations than have begun: the first of each layer takes time."""
        num_more = min(_LOOK_AHEAD - len(self._waiting), num_begun + _MORE_AHEAD)
        self._waiting.extend(itertools.islice(self._to_come, num_more))

    def _begin(self) -> None:
        """Begin relocations that have room, until so many copies are open as ranks may have."""
        num_ranks, seats_per_rank = self.placement.num_ranks, self.placement.seats_per_rank
        max_unlanded = self._pacing.max_open_copies * num_ranks
        is_free_LRS = self._states_LP.reshape(-1, num_ranks, seats_per_rank) == _Seat.FREE
        num_free_LR = is_free_LRS.sum(axis=2).tolist()
        num_begun = len(self._begun)
        for _ in range(len(self._waiting)):
            if len(self._unsent) + len(self._open) >= max_unlanded:
                break
            relocation = self._waiting.popleft()
            num_free_R = num_free_LR[relocation.layer]
            if all(num_free_R[held.rank] for held in relocation.added):
                self._fill(relocation)
                for held in relocation.added:
                    num_free_R[held.rank] -= 1
            else:
                self._waiting.append(relocation)
        self._look_ahead(len(self._begun) - num_begun)

    def _fill(self, relocation: Relocation) -> None:
        """Begin to fill a free seat of each rank that takes something in: none takes two."""
        layer = relocation.layer
        copies = tuple(
            [
                Copy(layer, held.expert, self._free_seat(layer, held.rank))
                for held in relocation.added
            ]
        )
        for copy in copies:
            self._states_LP[copy.layer, copy.physical] = _Seat.FILLING
        self._begun.append(_Begun(relocation, copies))
        self._num_unbegun -= len(copies)
        self._unsent.extend(copies)

    def _free_seat(self, layer: int, rank: int) -> int:
        first = rank * self.placement.seats_per_rank
        states_S = self._states_LP[layer, first : first + self.placement.seats_per_rank]
        return first + int((states_S == _Seat.FREE).argmax())

    def _send(self) -> tuple[Copy, ...]:
        """Copies for this step, in order, as far as each rank's pace allows."""
        num_open = Counter(self._rank_of(copy) for copy in self._open)
        num_new: Counter[int] = Counter()
        owners = {copy: begun for begun in self._begun for copy in begun.copies}
        sent = []

        for _ in range(len(self._unsent)):
            copy = self._unsent.popleft()
            rank = self._rank_of(copy)
            is_too_much = num_new[rank] >= self._pacing.max_copies_per_step
            if is_too_much or num_open[rank] >= self._pacing.max_open_copies:
                self._unsent.append(copy)
                continue
            num_new[rank] += 1
            num_open[rank] += 1
            self._open[copy] = owners[copy]
            sent.append(copy)
        self.num_copies += len(sent)
        return tuple(sent)

    def _flip(self, step: int) -> Flip | None:
        """Route to all relocations whose copies have landed, and away from what they drop."""
        ended = [begun for begun in self._begun if self._has_landed(begun)]
        if not ended:
            return None

        experts_LP = self.placement.experts_LP.copy()
        for begun in ended:
            layer = begun.relocation.layer
            for held in begun.relocation.dropped:
                physical = int(self.placement.physical_LRE[layer, held.rank, held.expert])
                experts_LP[layer, physical] = EMPTY
                self._states_LP[layer, physical] = _Seat.RETIRED
            for copy in begun.copies:
                experts_LP[layer, copy.physical] = copy.expert
                self._states_LP[layer, copy.physical] = _Seat.LIVE

        self._begun = [begun for begun in self._begun if begun not in ended]
        return self._commit(experts_LP, step)

    def _commit(self, experts_LP: np.ndarray, step: int) -> Flip:
        layers = (experts_LP != self.placement.experts_LP).any(axis=1).nonzero()[0]
        self.placement = Placement(experts_LP, self.placement.num_experts, self.placement.num_ranks)
        self.version += 1
        self.num_flips += 1
        self._flip_step = step
        return Flip(self.version, self.placement, tuple(layers.tolist()))

    def _has_landed(self, begun: _Begun) -> bool:
        return len(begun.landed) == len(begun.copies)

    def _have_all_flipped(self) -> bool:
        return len(self._flipped) == self.placement.num_ranks

    def _rank_of(self, copy: Copy) -> int:
        return copy.physical // self.placement.seats_per_rank
