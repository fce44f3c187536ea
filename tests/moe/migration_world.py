"""Ranks that hold experts in seats and obey a migration, each at its own time."""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from raydix.moe.migration import Copy, Migration, Orders, Pacing
from raydix.moe.placement import EMPTY, Placement


def random_wanted(rng: np.random.Generator, current: Placement, *, spare_seats: int) -> Placement:
    """Another placement: experts anywhere, with replicas where there is room."""
    num_ranks, seats = current.num_ranks, current.seats_per_rank - spare_seats
    experts_LRS = np.full((current.num_layers, num_ranks, current.seats_per_rank), EMPTY)
    for layer in experts_LRS:
        held: list[list[int]] = [[] for _ in range(num_ranks)]
        more = rng.integers(current.num_experts, size=int(rng.integers(0, num_ranks * seats)))
        for expert in [*rng.permutation(current.num_experts), *more]:
            free = [own for own in held if len(own) < seats and expert not in own]
            if free:
                free[rng.integers(len(free))].append(int(expert))
        for rank, own in enumerate(held):
            layer[rank, rng.permutation(current.seats_per_rank)[: len(own)]] = own
    experts_LP = experts_LRS.reshape(current.num_layers, -1)
    return Placement(experts_LP, current.num_experts, num_ranks)


@dataclass(eq=False)
class ModelRank:
    """One rank with its placement."""

    placement: Placement
    """The placement by which it sends rows."""
    inbox: deque[tuple[int, Orders]] = field(default_factory=deque)
    copying: list[Copy] = field(default_factory=list)
    last_step: int = -1


@dataclass(frozen=True)
class Ack:
    """An answer on its way to the migration: copies that have landed, or a step that has ended."""

    rank: int
    copies: tuple[Copy, ...] = ()
    step: int | None = None


class World:
    """A migration and the ranks of its group. `seats` is what is really in each seat, or None."""

    def __init__(self, placement: Placement, pacing: Pacing, kind: type[Migration]) -> None:
        self.migration = kind(placement, pacing=pacing)
        self.pacing = pacing
        self.acks: list[Ack] = []
        self.next_step = 0
        self.ranks = [ModelRank(placement) for _ in range(placement.num_ranks)]
        self.seats: dict[tuple[int, int], int | None] = {
            (int(layer), int(physical)): int(placement.experts_LP[layer, physical])
            for layer, physical in np.argwhere(placement.experts_LP != EMPTY)
        }

    def plan(self) -> Orders:
        orders = self.migration.plan_step(self.next_step)
        for rank in self.ranks:
            rank.inbox.append((self.next_step, orders))
        self.next_step += 1
        return orders

    def receive(self, index: int) -> None:
        """A rank takes its next plan: it routes anew, and its seats are being written."""
        rank = self.ranks[index]
        rank.last_step, orders = rank.inbox.popleft()
        if orders.flip is not None:
            rank.placement = orders.flip.placement
        for copy in orders.copies:
            if copy.physical // rank.placement.seats_per_rank == index:
                rank.copying.append(copy)
                self.seats[copy.layer, copy.physical] = None

    def land(self, index: int, num_copies: int) -> None:
        rank = self.ranks[index]
        copies, rank.copying = rank.copying[:num_copies], rank.copying[num_copies:]
        for copy in copies:
            self.seats[copy.layer, copy.physical] = copy.expert
        self.acks.append(Ack(index, copies=tuple(copies)))

    def finish(self, index: int) -> None:
        self.acks.append(Ack(index, step=self.ranks[index].last_step))

    def deliver(self, position: int) -> None:
        ack = self.acks.pop(position)
        if ack.step is None:
            self.migration.copied(ack.rank, ack.copies)
        else:
            self.migration.finished(ack.rank, ack.step)

    def run_out(self, max_steps: int = 2000) -> None:
        """Everybody does all that it can until no work is open."""
        for _ in range(max_steps):
            if not self.migration.is_open:
                return
            self.proceed()
        raise AssertionError(f"work is open after {max_steps} steps")

    def proceed(self, late: int | None = None) -> None:
        """A step that all ranks take, and all its acknowledgements; rank `late` does nothing."""
        self.plan()
        for index, rank in enumerate(self.ranks):
            if index == late:
                continue
            while rank.inbox:
                self.receive(index)
                self.check()
            self.land(index, len(rank.copying))
            self.finish(index)

        while self.acks:
            self.deliver(0)
            self.migration.check()
        self.check()

    def check(self) -> None:
        """Wherever a rank may send a row for an expert, that expert is."""
        for rank in self.ranks:
            routed_LP = rank.placement.experts_LP
            for layer, physical in np.argwhere(routed_LP != EMPTY).tolist():
                expert = int(routed_LP[layer, physical])
                found = self.seats.get((layer, physical))
                assert found == expert, f"layer {layer}: seat {physical} has {found}, not {expert}"
