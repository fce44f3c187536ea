"""The changes that a planner weighs: for each layer, the best of its kind for its costliest rank.

A layer's strain is the sum over ranks of the squared cost above the goal. Unlike the peak it falls,
too, when a very costly expert comes to one more rank, which has yet to give up others.

Legend: X layers, R ranks, S seats, E experts, N numbers of replicas, C costs of which the largest
counts, I seats of the hot rank, J places that may change, K experts to copy, D places for a copy.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raydix.moe.placement import EMPTY, FloatArray, Int32Array

_NUM_HOT, _NUM_SPARED = 8, 24
"""The numbers of the hot rank's costliest experts and of the places cheapest to clear, which are
tried together as a copy's expert and its place.
"""
_DROP_MOVES = 0.5
"""The moves that a dropped replica counts as: it moves none, but the next expert there does."""


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """The layers that are not level yet, as this turn finds them."""

    layers_X: NDArray[np.intp]
    experts_XRS: Int32Array
    held_XRE: NDArray[np.bool_]
    num_replicas_XE: Int32Array
    costs_CXEN: FloatArray
    seat_costs_CXRS: FloatArray
    rank_costs_CXR: FloatArray
    hot_X: NDArray[np.intp]
    """The costliest rank of each layer."""
    peak_X: FloatArray
    """The cost of each layer's costliest rank."""
    goal_X: FloatArray
    """The cost of a rank that is low enough in each layer."""
    places_XJ: NDArray[np.intp]
    """The places of each layer that are on the colder half of the ranks."""
    is_open_XJ: NDArray[np.bool_]
    """Whether each place may take an expert: it is full, or a spare rank's first empty seat."""
    room_X: NDArray[np.intp]
    """The empty place that may be filled on the coldest rank that has one; EMPTY if no rank has."""

    def strain(self, costs: FloatArray) -> FloatArray:
        """The strain of ranks with such costs, [X, ...]: below the goal, less hardly counts."""
        goal = self.goal_X.reshape(-1, *(1,) * (costs.ndim - 1))
        above = np.maximum(costs - goal, 0.0)
        return above * above + 1e-6 * costs * costs


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The best change of its kind for each layer."""

    score_X: FloatArray
    """The strain that the change takes away for each expert moved; -inf where nothing helps."""
    seat_X: NDArray[np.intp]
    """The seat of the hot rank that the change concerns."""
    place_X: NDArray[np.intp]
    """The place where the other half of the change happens; a drop has none."""


def best_swap(turn: Turn) -> Choice:
    """A seat of the hot rank against one of a colder rank, which may be empty."""
    num_layers, _, seats = turn.experts_XRS.shape
    rows = np.arange(num_layers)
    rank_XJ = turn.places_XJ // seats
    experts_XI = turn.experts_XRS[rows, turn.hot_X]
    experts_XJ = np.take_along_axis(turn.experts_XRS.reshape(num_layers, -1), turn.places_XJ, 1)

    hot_XIJ, cold_XIJ = np.zeros((2, num_layers, seats, turn.places_XJ.shape[1]))
    for seat_costs_XRS, rank_costs_XR in zip(
        turn.seat_costs_CXRS, turn.rank_costs_CXR, strict=True
    ):
        costs_XI = seat_costs_XRS[rows, turn.hot_X]
        costs_XJ = np.take_along_axis(seat_costs_XRS.reshape(num_layers, -1), turn.places_XJ, 1)
        less_XIJ = costs_XI[:, :, None] - costs_XJ[:, None]
        hot_X = rank_costs_XR[rows, turn.hot_X]
        cold_XJ = np.take_along_axis(rank_costs_XR, rank_XJ, 1)
        np.maximum(hot_XIJ, hot_X[:, None, None] - less_XIJ, out=hot_XIJ)
        np.maximum(cold_XIJ, cold_XJ[:, None] + less_XIJ, out=cold_XIJ)

    cold_XJ = np.take_along_axis(turn.rank_costs_CXR.max(axis=0), rank_XJ, 1)
    before_XJ = turn.strain(turn.peak_X[:, None]) + turn.strain(cold_XJ)
    relief_XIJ = before_XJ[:, None] - turn.strain(hot_XIJ) - turn.strain(cold_XIJ)

    # Neither rank may hold the other's expert already.
    is_there_XIJ = turn.held_XRE[rows[:, None, None], rank_XJ[:, None], experts_XI[:, :, None]]
    is_here_XJ = turn.held_XRE[rows[:, None], turn.hot_X[:, None], experts_XJ]
    is_empty_XJ = experts_XJ == EMPTY
    is_right_XJ = turn.is_open_XJ & (rank_XJ != turn.hot_X[:, None]) & (is_empty_XJ | ~is_here_XJ)
    is_right_XIJ = is_right_XJ[:, None] & (experts_XI != EMPTY)[:, :, None] & ~is_there_XIJ
    moves_XJ = np.where(is_empty_XJ, 1.0, 2.0)
    return _best(turn, relief_XIJ, is_right_XIJ, moves_XJ[:, None], turn.places_XJ)


def best_copy(turn: Turn) -> Choice:
    """One more replica of an expert of the hot rank, in an empty seat, over a replica, or in the
    place of an only copy, which moves to where there is room.
    """
    num_layers, num_ranks, seats = turn.experts_XRS.shape
    rows = np.arange(num_layers)[:, None]
    hot_costs_XI = turn.seat_costs_CXRS.max(axis=0)[rows[:, 0], turn.hot_X]
    seat_XK = np.argsort(-hot_costs_XI, axis=1, kind="stable")[:, :_NUM_HOT]
    expert_XK = turn.experts_XRS[rows, turn.hot_X[:, None], seat_XK]

    place_XD, is_right_XD, is_only_XD = _spared(turn)
    rank_XD = place_XD // seats
    old_XD = turn.experts_XRS.reshape(num_layers, -1)[rows, place_XD]
    is_old_XD = old_XD != EMPTY
    at_XDR = rank_XD[:, :, None] == np.arange(num_ranks)
    to_XDR = (
        is_only_XD[:, :, None] & (np.arange(num_ranks) == turn.room_X[:, None] // seats)[:, None]
    )
    holds_XKR = turn.held_XRE.transpose(0, 2, 1)[rows, expert_XK]
    holds_XDR = turn.held_XRE.transpose(0, 2, 1)[rows, old_XD] & is_old_XD[:, :, None] & ~at_XDR

    num_XK = turn.num_replicas_XE[rows, expert_XK]
    num_XD = turn.num_replicas_XE[rows, old_XD]
    after_XKDR = np.zeros((*expert_XK.shape, *at_XDR.shape[1:]))
    for costs_XEN, rank_costs_XR in zip(turn.costs_CXEN, turn.rank_costs_CXR, strict=True):
        new_XK = costs_XEN[rows, expert_XK, np.minimum(num_XK + 1, num_ranks)]
        less_XKR = holds_XKR * (new_XK - costs_XEN[rows, expert_XK, num_XK])[:, :, None]
        gone_XD = costs_XEN[rows, old_XD, num_XD] * is_old_XD
        more_XD = costs_XEN[rows, old_XD, np.maximum(num_XD - 1, 1)] - gone_XD
        change_XDR = holds_XDR * more_XD[:, :, None]
        change_XDR += (to_XDR * 1.0 - at_XDR) * gone_XD[:, :, None]

        cost_XKDR = (rank_costs_XR[:, None] + less_XKR)[:, :, None] + change_XDR[:, None]
        cost_XKDR += at_XDR[:, None] * new_XK[:, :, None, None]
        np.maximum(after_XKDR, cost_XKDR, out=after_XKDR)
    relief_XKD = _total(turn)[:, None, None] - turn.strain(after_XKDR).sum(axis=3)

    is_there_XKD = turn.held_XRE[rows[:, :, None], rank_XD[:, None], expert_XK[:, :, None]]
    is_right_XKD = is_right_XD[:, None] & (expert_XK != EMPTY)[:, :, None] & ~is_there_XKD
    moves_X1D = np.where(is_only_XD, 2.0, 1.0)[:, None]
    return _best(turn, relief_XKD, is_right_XKD, moves_X1D, place_XD, seat_XK)


def _spared(turn: Turn) -> tuple[NDArray[np.intp], NDArray[np.bool_], NDArray[np.bool_]]:
    """Cold places that an expert's copy may take, [X, D]; whether it really may; and whether an
    only copy has to make way. Those that need not come first, then those that hold least.
    """
    num_layers, _, seats = turn.experts_XRS.shape
    rows = np.arange(num_layers)[:, None]
    rank_XJ = turn.places_XJ // seats
    experts_XJ = turn.experts_XRS.reshape(num_layers, -1)[rows, turn.places_XJ]
    costs_XJ = turn.seat_costs_CXRS.max(axis=0).reshape(num_layers, -1)[rows, turn.places_XJ]

    is_only_XJ = (experts_XJ != EMPTY) & (turn.num_replicas_XE[rows, experts_XJ] == 1)
    has_room_XJ = (turn.room_X[:, None] != EMPTY) & (turn.room_X[:, None] // seats != rank_XJ)
    is_right_XJ = turn.is_open_XJ & (rank_XJ != turn.hot_X[:, None]) & (has_room_XJ | ~is_only_XJ)
    key_XJ = costs_XJ + is_only_XJ * turn.peak_X[:, None]
    order_XJ = np.argsort(np.where(is_right_XJ, key_XJ, np.inf), axis=1, kind="stable")
    first_XD = order_XJ[:, :_NUM_SPARED]
    return turn.places_XJ[rows, first_XD], is_right_XJ[rows, first_XD], is_only_XJ[rows, first_XD]


def best_drop(turn: Turn) -> Choice:
    """The hot rank gives up a replica that others hold, too."""
    num_layers, num_ranks, seats = turn.experts_XRS.shape
    rows = np.arange(num_layers)[:, None]
    experts_XI = turn.experts_XRS[rows, turn.hot_X[:, None], np.arange(seats)]
    num_XI = turn.num_replicas_XE[rows, experts_XI]
    is_hot_XR = np.arange(num_ranks) == turn.hot_X[:, None]
    holds_XIR = turn.held_XRE.transpose(0, 2, 1)[rows, experts_XI]
    others_XIR = holds_XIR & ~is_hot_XR[:, None]

    after_XIR = np.zeros(holds_XIR.shape)
    for costs_XEN, rank_costs_XR in zip(turn.costs_CXEN, turn.rank_costs_CXR, strict=True):
        gone_XI = costs_XEN[rows, experts_XI, num_XI]
        more_XI = costs_XEN[rows, experts_XI, np.maximum(num_XI - 1, 1)] - gone_XI
        cost_XIR = rank_costs_XR[:, None] + others_XIR * more_XI[:, :, None]
        cost_XIR -= (is_hot_XR[:, None] & holds_XIR) * gone_XI[:, :, None]
        np.maximum(after_XIR, cost_XIR, out=after_XIR)
    relief_XI = _total(turn)[:, None] - turn.strain(after_XIR).sum(axis=2)

    is_right_XI = (experts_XI != EMPTY) & (num_XI > 1)
    moves = np.full((1, 1, 1), _DROP_MOVES)
    place_X1 = np.zeros((num_layers, 1), np.intp)
    return _best(turn, relief_XI[:, :, None], is_right_XI[:, :, None], moves, place_X1)


def _total(turn: Turn) -> FloatArray:
    """The strain of each layer as it is."""
    total_X: FloatArray = turn.strain(turn.rank_costs_CXR.max(axis=0)).sum(axis=1)
    return total_X


def _best(
    turn: Turn,
    relief_XIJ: FloatArray,
    is_right_XIJ: NDArray[np.bool_],
    moves: FloatArray,
    places_XJ: NDArray[np.intp],
    seats_XI: NDArray[Any] | None = None,
) -> Choice:
    """The change that takes most strain away for each move."""
    rows = np.arange(len(relief_XIJ))
    least_X = 1e-3 * np.square(turn.peak_X - turn.goal_X)
    is_right_XIJ = is_right_XIJ & (relief_XIJ > least_X[:, None, None])
    score_XIJ = np.where(is_right_XIJ, relief_XIJ / moves, -np.inf)

    flat_X = score_XIJ.reshape(len(rows), -1).argmax(axis=1)
    seat_X, column_X = np.divmod(flat_X, score_XIJ.shape[2])
    return Choice(
        score_XIJ.reshape(len(rows), -1)[rows, flat_X],
        seat_X if seats_XI is None else seats_XI[rows, seat_X],
        places_XJ[rows, column_X],
    )
