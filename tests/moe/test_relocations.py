"""Relocations carry one placement into another with one empty seat, and never lose an expert."""

import numpy as np
import pytest

from raydix.moe.placement import EMPTY, Placement, initial_placement
from raydix.moe.relocations import Held, relocations
from tests.moe.migration_world import random_wanted


@pytest.mark.parametrize("seed", range(30))
def test_any_order_of_relocations_keeps_every_expert_and_every_ranks_room(seed: int) -> None:
    rng = np.random.default_rng(seed)
    first = initial_placement(2, int(rng.integers(2, 14)), int(rng.integers(2, 6)), spare_seats=2)
    current = random_wanted(rng, first, spare_seats=1)
    wanted = random_wanted(rng, first, spare_seats=1)
    is_held_LRE = current.physical_LRE != EMPTY

    plan = list(relocations(current, wanted))
    for index in rng.permutation(len(plan)):
        relocation = plan[index]
        for held in relocation.added:
            assert not is_held_LRE[relocation.layer, held.rank, held.expert]
            is_held_LRE[relocation.layer, held.rank, held.expert] = True
        assert len({held.rank for held in relocation.added}) == len(relocation.added)
        assert is_held_LRE.sum(axis=2).max() <= current.seats_per_rank
        for held in relocation.dropped:
            assert is_held_LRE[relocation.layer, held.rank, held.expert]
            is_held_LRE[relocation.layer, held.rank, held.expert] = False
        assert is_held_LRE.any(axis=1).all()

    assert np.array_equal(is_held_LRE, wanted.physical_LRE != EMPTY)


def test_layers_take_turns_and_a_further_one_joins_every_few_turns() -> None:
    current = initial_placement(3, 16, 2, spare_seats=1)
    order = [*range(9, 17), 8, *range(8), 17]
    swapped = Placement(current.experts_LP[:, order], 16, 2)

    layers = [relocation.layer for relocation in relocations(current, swapped)]

    assert layers == [0, 0, 0, 0, 1, 0, 1, 0, 2, 1, 0, 2, 1, 0, 2, 1, 2, 1, 2, 1, 2, 1, 2, 2]


@pytest.mark.parametrize("num_layers", [1, 5, 40])
def test_layers_with_one_relocation_each_all_have_their_turn(num_layers: int) -> None:
    current = initial_placement(num_layers, 4, 2, spare_seats=1)
    swapped = Placement(current.experts_LP[:, [3, 1, 2, 0, 4, 5]], 4, 2)

    layers = [relocation.layer for relocation in relocations(current, swapped)]

    assert layers == list(range(num_layers))


def test_placements_of_other_shapes_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"\(1, 2, 4\) against \(2, 2, 4\)"):
        relocations(
            initial_placement(1, 4, 2, spare_seats=1), initial_placement(2, 4, 2, spare_seats=1)
        )


def test_a_ring_of_ranks_is_one_exchange() -> None:
    current = initial_placement(1, 3, 3, spare_seats=1)
    wanted = Placement(np.array([[1, EMPTY, 2, EMPTY, 0, EMPTY]]), 3, 3)

    (relocation,) = relocations(current, wanted)

    assert set(relocation.added) == {Held(0, 1), Held(1, 2), Held(2, 0)}
    assert set(relocation.dropped) == {Held(0, 0), Held(1, 1), Held(2, 2)}


def test_the_same_experts_in_other_seats_are_no_change() -> None:
    current = initial_placement(1, 4, 2, spare_seats=1)
    wanted = Placement(np.array([[EMPTY, 1, 0, 3, EMPTY, 2]]), 4, 2)

    assert list(relocations(current, wanted)) == []
