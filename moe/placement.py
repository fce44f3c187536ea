"""Which logical expert each seat of each rank holds, and by which copy a rank's tokens reach it.

Legend: L layers, E logical experts, R ranks, P physical experts: R times the seats of a rank.
Physical expert p is seat `p % seats_per_rank` of rank `p // seats_per_rank`.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int32Array = NDArray[np.int32]
FloatArray = NDArray[np.float64]

EMPTY = -1
"""The number that stands for no expert in a seat, and for no seat of an expert on a rank."""


@dataclass(frozen=True, eq=False)
class Placement:
    """The logical expert in every seat, layer by layer; never changed once it is made.

    `experts_LP`: int32, read-only; EMPTY where a seat holds nothing. Raises ValueError if an expert
    lives nowhere in some layer, or twice on one rank: the second copy would only take room.
    """

    experts_LP: Int32Array
    num_experts: int
    num_ranks: int

    def __post_init__(self) -> None:
        experts_LP = np.array(self.experts_LP, dtype=np.int32)
        experts_LP.flags.writeable = False
        object.__setattr__(self, "experts_LP", experts_LP)
        self._check()

    @property
    def num_layers(self) -> int:
        """L: the number of layers."""
        return self.experts_LP.shape[0]

    @property
    def seats_per_rank(self) -> int:
        """How many experts of one layer a rank has room for."""
        return self.experts_LP.shape[1] // self.num_ranks

    @cached_property
    def physical_LRE(self) -> Int32Array:
        """The physical expert by which a rank holds a logical one; EMPTY where it does not."""
        num_places = self.num_ranks * self.seats_per_rank
        layers, places = np.nonzero(self.experts_LP != EMPTY)
        physical_LRE = np.full((self.num_layers, self.num_ranks, self.num_experts), EMPTY, np.int32)

        ranks = np.arange(num_places)[places] // self.seats_per_rank
        physical_LRE[layers, ranks, self.experts_LP[layers, places]] = places
        physical_LRE.flags.writeable = False
        return physical_LRE

    @cached_property
    def num_replicas_LE(self) -> Int32Array:
        """How many ranks hold each expert."""
        return (self.physical_LRE != EMPTY).sum(axis=1, dtype=np.int32)

    @property
    def num_empty_LR(self) -> Int32Array:
        """How many seats of each rank are empty."""
        by_rank = self.experts_LP.reshape(self.num_layers, self.num_ranks, -1)
        return (by_rank == EMPTY).sum(axis=2, dtype=np.int32)

    def replicas(self, layer: int, expert: int) -> tuple[int, ...]:
        """The physical experts that hold `expert`, by rank."""
        physical_R = self.physical_LRE[layer, :, expert]
        return tuple(int(physical) for physical in physical_R[physical_R != EMPTY])

    def _check(self) -> None:
        shape = self.experts_LP.shape
        if len(shape) != 2 or self.num_ranks < 1 or shape[1] % self.num_ranks:
            raise ValueError(
                f"experts_LP has shape {shape}; expected [layers, places], places a multiple of "
                f"the {self.num_ranks} ranks"
            )
        if shape[0] == 0:
            return
        low, high = int(self.experts_LP.min()), int(self.experts_LP.max())
        if low < EMPTY or high >= self.num_experts:
            raise ValueError(f"experts {low} to {high}; expected {EMPTY} to {self.num_experts - 1}")

        # Two copies on one rank share an entry of `physical_LRE`.
        num_held = int((self.physical_LRE != EMPTY).sum())
        num_filled = int((self.experts_LP != EMPTY).sum())
        if num_held != num_filled:
            raise ValueError(f"{num_filled - num_held} seats repeat an expert of their own rank")
        if not self.num_replicas_LE.all():
            layer, expert = (int(index[0]) for index in np.nonzero(self.num_replicas_LE == 0))
            raise ValueError(f"expert {expert} of layer {layer} is in no seat")


def initial_placement(
    num_layers: int,
    num_experts: int,
    num_ranks: int,
    *,
    redundant_per_rank: int = 0,
    spare_seats: int = 0,
) -> Placement:
    """Contiguous shares as even as can be, before any demand is known; the same in every layer.

    A rank's redundant copies are of the experts that follow its share; a rank never repeats one, so
    where it has all already those seats are left empty, as are the spare ones.
    """
    share, num_longer = divmod(num_experts, num_ranks)
    longest = share + (num_longer > 0)
    experts_RS = np.full((num_ranks, longest + redundant_per_rank + spare_seats), EMPTY, np.int32)

    first = 0
    for rank in range(num_ranks):
        num_own = share + (rank < num_longer)
        num_held = min(num_own + redundant_per_rank, num_experts)
        experts_RS[rank, :num_held] = (first + np.arange(num_held)) % num_experts
        first += num_own
    return Placement(np.tile(experts_RS.reshape(-1), (num_layers, 1)), num_experts, num_ranks)


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """The physical experts by which the tokens of one rank reach each logical one.

    A row takes entry `n % count` of its expert, with any n that differs from row to row.
    """

    table_LER: Int32Array
    """The physical experts of each logical one, `counts_LE` of them, then EMPTY. An expert that is
    listed twice takes more rows.
    """
    counts_LE: Int32Array


def routes(placement: Placement, rank: int, demand_LE: NDArray[Any]) -> Routes:
    """The routes of one rank; each rank finds its own from the same arguments.

    A rank that holds an expert asks nobody else. Rows of the others go where they level the ranks'
    `demand_LE` counts the rows of an expert from all ranks, taken as equally many from each.
    Experts with the most such rows choose first; of ranks with equal demand the first is chosen.
    """
    physical_LRE, counts_LE = placement.physical_LRE, placement.num_replicas_LE
    num_layers, num_ranks, num_experts = physical_LRE.shape
    # An expert without any demand still needs a choice: next to nothing decides it.
    demand_LE = np.asarray(demand_LE, dtype=np.float64)
    demand_LE = demand_LE + 1e-6 * (1.0 + demand_LE.mean(axis=1, keepdims=True))

    table_LER = np.full((num_layers, num_experts, num_ranks), EMPTY, np.int32)
    own_LE = physical_LRE[:, rank]
    # The only copy, and the own one, need no choice.
    table_LER[..., 0] = np.where(own_LE != EMPTY, own_LE, physical_LRE.max(axis=1))
    route_counts_LE = np.where(own_LE != EMPTY, 1, counts_LE).astype(np.int32)

    layers_X, experts_X, ends_XR = _level(physical_LRE != EMPTY, demand_LE)
    is_remote_X = own_LE[layers_X, experts_X] == EMPTY
    layers_X, experts_X = layers_X[is_remote_X], experts_X[is_remote_X]
    holders_XR = physical_LRE[layers_X, :, experts_X] != EMPTY
    chosen_XR = _own_parts(ends_XR[is_remote_X], holders_XR, rank)

    row, column = np.nonzero(chosen_XR != EMPTY)
    layer, expert = layers_X[row], experts_X[row]
    table_LER[layer, expert, column] = physical_LRE[layer, chosen_XR[row, column], expert]
    return Routes(table_LER, route_counts_LE)


def _level(
    is_held_LRE: NDArray[np.bool_], demand_LE: FloatArray
) -> tuple[NDArray[np.intp], NDArray[np.intp], Int32Array]:
    """Divide the rows of experts that some ranks lack and several hold: layers and experts [X],
    and up to which of its parts each rank takes them, [X, R].
    """
    num_ranks = is_held_LRE.shape[1]
    counts_LE = is_held_LRE.sum(axis=1)
    fixed_LE = np.where(counts_LE == 1, demand_LE, demand_LE / num_ranks)
    demand_LR = np.matmul(is_held_LRE, fixed_LE[:, :, None])[:, :, 0]
    remote_LE = np.where(counts_LE > 1, demand_LE * (num_ranks - counts_LE) / num_ranks, 0.0)
    order_LE = np.argsort(-remote_LE, axis=1, kind="stable")
    num_chosen_L = (remote_LE > 0).sum(axis=1)

    # In every layer the experts take turns, those with most rows to divide first.
    layers, experts, ends = [], [], []
    for turn in range(int(num_chosen_L.max(initial=0))):
        layers_X = np.nonzero(num_chosen_L > turn)[0]
        experts_X = order_LE[layers_X, turn]
        rows_X = remote_LE[layers_X, experts_X]
        ends_XR = _divide(demand_LR[layers_X], is_held_LRE[layers_X, :, experts_X], rows_X)
        added_XR = np.diff(ends_XR, axis=1, prepend=0)
        demand_LR[layers_X] += added_XR * (rows_X / ends_XR[:, -1])[:, None]

        layers.append(layers_X)
        experts.append(experts_X)
        ends.append(ends_XR)
    if not ends:
        nothing = np.zeros(0, np.intp)
        return nothing, nothing, np.zeros((0, num_ranks), np.int32)
    return np.concatenate(layers), np.concatenate(experts), np.concatenate(ends)


def _divide(demand_XR: FloatArray, holders_XR: NDArray[np.bool_], rows_X: FloatArray) -> Int32Array:
    """Cut `rows_X` into equal parts, n for each remote rank of n holders; up to which part each
    rank takes them so that the demand on the holders comes out level, [X, R].
    """
    num_holders_X = holders_XR.sum(axis=1)
    num_parts_X = num_holders_X * (holders_XR.shape[1] - num_holders_X)

    # Water poured over the k lowest holders rises to level k; the lowest of these is the true one.
    held_XR = np.where(holders_XR, demand_XR, np.inf)
    levels_XR = (rows_X[:, None] + np.sort(held_XR, axis=1).cumsum(axis=1)) / np.arange(
        1, held_XR.shape[1] + 1
    )
    shares_XR = np.maximum(levels_XR.min(axis=1, keepdims=True) - held_XR, 0.0)

    ends_XR = shares_XR.cumsum(axis=1) * (num_parts_X / shares_XR.sum(axis=1))[:, None]
    return np.rint(ends_XR).astype(np.int32)


def _own_parts(ends_XR: Int32Array, holders_XR: NDArray[np.bool_], rank: int) -> Int32Array:
    """The ranks that take `rank`'s parts, n of n holders, then EMPTY, [X, R].

    Remote ranks take parts in turn, so that each rank's parts are spread over the holders.
    """
    num_ranks = holders_XR.shape[1]
    num_holders_X = holders_XR.sum(axis=1)
    turn_X = (~holders_XR[:, :rank]).sum(axis=1)

    column_R = np.arange(num_ranks)
    part_XR = turn_X[:, None] + column_R * (num_ranks - num_holders_X)[:, None]
    takers_XR = (ends_XR[:, None, :] <= part_XR[:, :, None]).sum(axis=2, dtype=np.int32)
    return np.where(column_R < num_holders_X[:, None], takers_XR, EMPTY).astype(np.int32)
