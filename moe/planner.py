"""Level the ranks with few moves, starting from where the experts are.

Again and again the costliest rank of a layer exchanges an expert with another rank, gives one up
that others hold, or has one of its experts copied over a copy that can be spared elsewhere;
whichever eases the layer most for each move (see changes.py). All layers take a turn at once.

Legend: L layers (X those of one turn), R ranks, S seats, P places, E experts, N numbers of
replicas, C costs of which the largest counts (see expert_time.py), J places.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raydix.moe.changes import Turn, best_copy, best_drop, best_swap
from raydix.moe.expert_time import imbalance, rank_costs
from raydix.moe.placement import EMPTY, FloatArray, Int32Array, Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerLimits:
    """When a layer is good enough, and what it may take to get there."""

    balance: float = 0.985
    """The search ends at this ratio of a layer's mean rank cost to the largest, or at the cap."""
    max_moves: int = 24
    """The most moves in one layer; a swap of two experts counts as two."""
    spare_seats: int = 1
    """The number of seats of each rank that stay empty in every layer."""


@dataclass(frozen=True, slots=True, eq=False)
class Rebalance:
    """A placement to migrate to. Costs are sums over layers of the costliest rank's."""

    placement: Placement
    num_moves: int
    """The number of experts that come to ranks that lack them."""
    cost_before: float
    cost_after: float
    imbalance_before: float
    imbalance_after: float


def rebalance(current: Placement, costs_CLEN: FloatArray, limits: PlannerLimits) -> Rebalance:
    """The incremental plan. `costs_CLEN`: what one of an expert's N replicas costs its rank.

    Deterministic: of equals the first is taken.
    """
    search = _Search(current, costs_CLEN, limits)
    while search.take_turn():
        pass

    found = Placement(search.experts_LP, current.num_experts, current.num_ranks)
    before_LR = rank_costs(current, costs_CLEN)
    # A search that the cap cut short may have left a layer with a higher peak than it found.
    is_better_L = rank_costs(found, costs_CLEN).max(axis=1) < before_LR.max(axis=1)
    experts_LP = np.where(is_better_L[:, None], found.experts_LP, current.experts_LP)
    placement = Placement(experts_LP, current.num_experts, current.num_ranks)
    after_LR = rank_costs(placement, costs_CLEN)
    return Rebalance(
        placement,
        num_moves(current, placement),
        cost_before=float(before_LR.max(axis=1).sum()),
        cost_after=float(after_LR.max(axis=1).sum()),
        imbalance_before=imbalance(before_LR),
        imbalance_after=imbalance(after_LR),
    )


def num_moves(current: Placement, wanted: Placement) -> int:
    """Experts that come to ranks that do not hold them."""
    return int(((current.physical_LRE == EMPTY) & (wanted.physical_LRE != EMPTY)).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Decides whether a plan pays.

    It is asked anew with the demand of each interval, so neither answer outlives what it was about.
    What copies cost is taken from the settings: a wrong figure moves too much or too little, and
    `expert_time_imbalance` beside `expert_moves` shows which.
    """

    stable_steps: float
    """The number of steps for which demand is expected to stay as it is."""
    copy_bytes_per_s: float
    """The speed at which one rank copies experts beside its steps."""
    slowdown: float = 0.1
    """The fraction by which steps are slower while experts are copied."""
    margin: float = 1.5
    """The factor by which a plan must outdo its cost, so that recent moves are not soon undone."""
    min_gain_fraction: float = 0.01
    """The least gain, as a fraction of the experts' time: demand is only an estimate."""

    def is_worth(self, plan: Rebalance, *, expert_bytes: int) -> bool:
        """Whether the plan pays, if its costs are seconds of a step."""
        saving_s = plan.cost_before - plan.cost_after
        num_ranks = plan.placement.num_ranks
        copying_s = plan.num_moves * expert_bytes / num_ranks / self.copy_bytes_per_s
        is_felt = saving_s > self.min_gain_fraction * plan.cost_before
        return is_felt and saving_s * self.stable_steps > self.margin * self.slowdown * copying_s


class _Search:
    """Owns: the placement that a plan is changing."""

    def __init__(self, current: Placement, costs_CLEN: FloatArray, limits: PlannerLimits) -> None:
        self._shape = current.num_layers, current.num_ranks, current.seats_per_rank
        self._experts_LRS = current.experts_LP.reshape(self._shape).copy()
        self._held_LRE = current.physical_LRE != EMPTY
        self._num_replicas_LE = current.num_replicas_LE.copy()
        self._costs_CLEN = costs_CLEN
        self._limits = limits
        self._num_moves_L = np.zeros(current.num_layers)
        self._is_active_L = np.full(current.num_layers, current.num_ranks > 1)

    @property
    def experts_LP(self) -> Int32Array:
        """The experts in each place, as `Placement.experts_LP` has them."""
        return self._experts_LRS.reshape(self._shape[0], -1)

    def take_turn(self) -> bool:
        """One change in every layer that needs one; False if none did."""
        layers_X = self._uneven_layers()
        if not len(layers_X):
            return False
        turn = self._turn(layers_X)
        choices = [best_swap(turn), best_copy(turn), best_drop(turn)]
        kind_X = np.argmax([choice.score_X for choice in choices], axis=0)

        for index, layer in enumerate(layers_X.tolist()):
            choice = choices[kind_X[index]]
            if not choice.score_X[index] > 0:
                self._is_active_L[layer] = False
                continue
            hot, seat = int(turn.hot_X[index]), int(choice.seat_X[index])
            other = divmod(int(choice.place_X[index]), self._shape[2])
            if kind_X[index] == 0:
                self._swap(layer, (hot, seat), other)
            elif kind_X[index] == 1:
                room = divmod(int(turn.room_X[index]), self._shape[2])
                self._copy(layer, (hot, seat), other, room)
            else:
                self._put(layer, (hot, seat), EMPTY)
        return True

    def _uneven_layers(self) -> NDArray[np.intp]:
        is_active_L = self._is_active_L & (self._num_moves_L + 2 <= self._limits.max_moves)
        layers = is_active_L.nonzero()[0]
        costs_LR = self._seat_costs(layers).sum(axis=3).max(axis=0)
        is_uneven = costs_LR.mean(axis=1) < self._limits.balance * costs_LR.max(axis=1)
        self._is_active_L[:] = False
        self._is_active_L[layers[is_uneven]] = True
        return layers[is_uneven]

    def _seat_costs(self, layers_X: NDArray[np.intp]) -> FloatArray:
        """The cost of each seat to its rank, [C, X, R, S]."""
        experts_XRS = self._experts_LRS[layers_X]
        layer_X11 = layers_X[:, None, None]
        counts_XRS = self._num_replicas_LE[layer_X11, experts_XRS]
        costs = self._costs_CLEN[:, layer_X11, experts_XRS, counts_XRS]
        return np.where(experts_XRS != EMPTY, costs, 0.0)

    def _turn(self, layers_X: NDArray[np.intp]) -> Turn:
        num_ranks, seats = self._shape[1:]
        seat_costs_CXRS = self._seat_costs(layers_X)
        rank_costs_CXR = seat_costs_CXRS.sum(axis=3)
        costs_XR = rank_costs_CXR.max(axis=0)
        goal_X = costs_XR.mean(axis=1) / self._limits.balance

        experts_XRS = self._experts_LRS[layers_X]
        is_full_XRS = experts_XRS != EMPTY
        has_room_XR = is_full_XRS.sum(axis=2) < seats - self._limits.spare_seats
        is_first_empty_XRS = ~is_full_XRS & ((~is_full_XRS).cumsum(axis=2) == 1)
        is_open_XRS = is_full_XRS | (is_first_empty_XRS & has_room_XR[:, :, None])

        is_room_XRS = is_open_XRS & ~is_full_XRS
        room_XRS = np.where(is_room_XRS, costs_XR[:, :, None], np.inf).reshape(len(layers_X), -1)
        room_X = np.where(is_room_XRS.any(axis=(1, 2)), room_XRS.argmin(axis=1), EMPTY)
        cold_XR = np.argsort(costs_XR, axis=1, kind="stable")[:, : max(1, num_ranks // 2)]
        places_XJ = (cold_XR[:, :, None] * seats + np.arange(seats)).reshape(len(layers_X), -1)
        return Turn(
            layers_X=layers_X,
            experts_XRS=experts_XRS,
            held_XRE=self._held_LRE[layers_X],
            num_replicas_XE=self._num_replicas_LE[layers_X],
            costs_CXEN=self._costs_CLEN[:, layers_X],
            seat_costs_CXRS=seat_costs_CXRS,
            rank_costs_CXR=rank_costs_CXR,
            hot_X=costs_XR.argmax(axis=1),
            peak_X=costs_XR.max(axis=1),
            goal_X=goal_X,
            places_XJ=places_XJ,
            is_open_XJ=np.take_along_axis(
                is_open_XRS.reshape(len(layers_X), -1), places_XJ, axis=1
            ),
            room_X=room_X,
        )

    def _swap(self, layer: int, one: tuple[int, int], other: tuple[int, int]) -> None:
        """Exchange what is in two seats, of which the second may be empty."""
        experts = [int(self._experts_LRS[layer, *at]) for at in (one, other)]
        self._put(layer, one, EMPTY)
        self._put(layer, other, experts[0])
        self._put(layer, one, experts[1])
        self._num_moves_L[layer] += 1 + (experts[1] != EMPTY)

    def _copy(
        self, layer: int, one: tuple[int, int], other: tuple[int, int], room: tuple[int, int]
    ) -> None:
        """Bring the expert of `one` to `other`, too; an only copy there makes way to `room`."""
        old = int(self._experts_LRS[layer, *other])
        if old != EMPTY and self._num_replicas_LE[layer, old] == 1:
            self._swap(layer, other, room)
        self._put(layer, other, int(self._experts_LRS[layer, *one]))
        self._num_moves_L[layer] += 1

    def _put(self, layer: int, at: tuple[int, int], expert: int) -> None:
        """Let a seat hold `expert` or nothing, instead of what it held."""
        old = int(self._experts_LRS[layer, *at])
        for each, change in ((old, -1), (expert, 1)):
            if each != EMPTY:
                self._num_replicas_LE[layer, each] += change
                self._held_LRE[layer, at[0], each] = change > 0
        self._experts_LRS[layer, *at] = expert
