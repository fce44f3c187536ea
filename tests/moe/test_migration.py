"""Migrations under events in any order: every copy that a rank may route to is there."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from raydix.errors import AccountingError
from raydix.moe.migration import Copy, Migration, Pacing
from raydix.moe.placement import EMPTY, Placement, initial_placement
from tests.moe.migration_world import World, random_wanted

PACING = Pacing(max_copies_per_step=2, max_open_copies=3)


class MigrationMachine(RuleBasedStateMachine):
    """Plans, steps and copies in any order, on ranks with versions of their own."""

    kind: type[Migration] = Migration

    @initialize(
        num_ranks=st.integers(1, 4), num_experts=st.integers(1, 8), redundant=st.integers(0, 2)
    )
    def begin(self, num_ranks: int, num_experts: int, redundant: int) -> None:
        placement = initial_placement(
            2, num_experts, num_ranks, redundant_per_rank=redundant, spare_seats=1
        )
        self.world = World(placement, PACING, self.kind)
        self.wanted: Placement | None = None

    @precondition(lambda self: not self.world.migration.is_open)
    @rule(seed=st.integers(0, 2**32 - 1))
    def want(self, seed: int) -> None:
        """Take up a plan."""
        placement = self.world.migration.placement
        self.wanted = random_wanted(np.random.default_rng(seed), placement, spare_seats=1)
        self.world.migration.start(self.wanted)

    @rule()
    def plan(self) -> None:
        """Plan a step for all ranks."""
        orders = self.world.plan()
        per_rank = Counter(
            copy.physical // self.world.migration.placement.seats_per_rank for copy in orders.copies
        )
        assert max(per_rank.values(), default=0) <= PACING.max_copies_per_step

    @rule(data=st.data())
    def receive(self, data: st.DataObject) -> None:
        """One rank takes its next plan."""
        behind = [index for index, rank in enumerate(self.world.ranks) if rank.inbox]
        if behind:
            self.world.receive(data.draw(st.sampled_from(behind)))

    @rule(data=st.data())
    def land(self, data: st.DataObject) -> None:
        """Some copies of one rank land."""
        busy = [index for index, rank in enumerate(self.world.ranks) if rank.copying]
        if busy:
            index = data.draw(st.sampled_from(busy))
            assert len(self.world.ranks[index].copying) <= PACING.max_open_copies
            self.world.land(index, data.draw(st.integers(1, PACING.max_open_copies)))

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        """One rank ends the step whose plan it took last."""
        self.world.finish(data.draw(st.integers(0, len(self.world.ranks) - 1)))

    @precondition(lambda self: self.world.acks)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        """Some acknowledgement arrives."""
        self.world.deliver(data.draw(st.integers(0, len(self.world.acks) - 1)))

    @rule(data=st.data(), num_steps=st.integers(1, 4))
    def proceed(self, data: st.DataObject, num_steps: int) -> None:
        """All but one rank do all that they can, step after step."""
        late = data.draw(st.integers(0, len(self.world.ranks) - 1))
        for _ in range(num_steps):
            self.world.proceed(late)

    @invariant()
    def every_routed_copy_is_there(self) -> None:
        """Check every rank, by the version that this rank uses."""
        self.world.check()
        self.world.migration.check()

    def teardown(self) -> None:
        """An open plan comes to its end, and then holds what was wanted."""
        self.world.run_out()
        if self.wanted is not None:
            held = self.world.migration.placement.physical_LRE != EMPTY
            assert np.array_equal(held, self.wanted.physical_LRE != EMPTY)


TestMigrationMachine = MigrationMachine.TestCase
TestMigrationMachine.settings = settings(
    max_examples=200,
    stateful_step_count=30,
    suppress_health_check=list(HealthCheck),
)


class FlipsBeforeAllHaveLanded(Migration):
    def _has_landed(self, begun: object) -> bool:
        return True


class ReusesASeatAfterTheFirstRankHasFlipped(Migration):
    def _have_all_flipped(self) -> bool:
        return True


class ReusesASeatAtOnce(Migration):
    def _commit(self, experts_LP: np.ndarray, step: int) -> object:
        self._states_LP[experts_LP == EMPTY] = 0
        return super()._commit(experts_LP, step)


@pytest.mark.parametrize(
    "mutant",
    [
        FlipsBeforeAllHaveLanded,
        ReusesASeatAfterTheFirstRankHasFlipped,
        ReusesASeatAtOnce,
    ],
)
def test_the_machine_finds_a_migration_that(mutant: type[Migration]) -> None:
    machine = type("MutantMachine", (MigrationMachine,), {"kind": mutant})

    with pytest.raises((AssertionError, AccountingError, KeyError)):
        run_state_machine_as_test(
            machine,
            settings=settings(
                TestMigrationMachine.settings,
                max_examples=1000,
                phases=[Phase.generate],
                database=None,
            ),
        )


def migration_of(seats: list[int], num_ranks: int) -> Migration:
    return Migration(Placement(np.array([seats]), max(seats) + 1, num_ranks), pacing=PACING)


def test_experts_change_places_by_one_flip_once_both_copies_have_landed() -> None:
    migration = migration_of([0, EMPTY, 1, EMPTY], 2)
    num_copies = migration.start(Placement(np.array([[1, EMPTY, 0, EMPTY]]), 2, 2))
    first = migration.plan_step(0)
    to_0, to_1 = sorted(first.copies, key=lambda copy: copy.physical)

    migration.copied(0, (to_0,))
    second = migration.plan_step(1)
    migration.copied(1, (to_1,))
    third = migration.plan_step(2)

    assert (num_copies, to_0.physical, to_1.physical) == (2, 1, 3)
    assert first.flip is None
    assert second.flip is None
    assert third.flip is not None
    assert third.flip.placement.experts_LP.tolist() == [[EMPTY, 1, EMPTY, 0]]
    assert (third.flip.version, third.flip.layers) == (1, (0,))


def test_a_plan_is_open_until_the_seats_it_leaves_are_free_on_every_rank() -> None:
    migration = migration_of([0, 1, 0, EMPTY], 2)
    migration.start(Placement(np.array([[1, EMPTY, 0, EMPTY]]), 2, 2))

    assert migration.plan_step(7).flip is not None
    for rank, step in ((0, 7), (1, 6), (0, 8)):
        migration.finished(rank, step)
        assert migration.is_open
    migration.finished(1, 9)
    assert not migration.is_open


@pytest.mark.parametrize(
    ("current", "wanted"),
    [([0, 1, 2, 0, 1, 3], [0, 2, 3, 0, 1, 2]), ([0, 1, EMPTY, 2, 3, 0], [0, 1, 2, 3, 1, EMPTY])],
)
def test_a_rank_without_an_empty_seat_before_or_after_cannot_take_an_expert(
    current: list[int], wanted: list[int]
) -> None:
    migration = migration_of(current, 2)

    with pytest.raises(ValueError, match=r"layer 0: rank [01] has no empty seat for expert [123]"):
        migration.start(Placement(np.array([wanted]), 4, 2))
    assert not migration.is_open


def test_copies_keep_the_pace_of_each_rank() -> None:
    placement = initial_placement(6, 4, 2, spare_seats=1)
    swapped = Placement(placement.experts_LP[:, [3, 1, 2, 0, 4, 5]], 4, 2)
    migration = Migration(placement, pacing=Pacing(max_copies_per_step=2, max_open_copies=3))
    migration.start(swapped)

    per_step = [migration.plan_step(step).copies for step in range(3)]
    assert [len(copies) for copies in per_step] == [4, 2, 0]
    migration.copied(1, per_step[0][:1])
    assert len(migration.plan_step(3).copies) == 1
    assert migration.num_copies_left == 11


def test_a_copy_that_is_not_owed_is_an_error() -> None:
    migration = migration_of([0, EMPTY, 1, EMPTY], 2)
    stray = (Copy(0, 1, 1),)

    with pytest.raises(AccountingError, match="does not owe"):
        migration.copied(0, stray)
