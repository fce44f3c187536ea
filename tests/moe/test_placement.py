"""Placements keep their rules, and routes reach a copy of every expert and level the ranks."""

import numpy as np
import pytest

from raydix.moe.placement import EMPTY, Placement, initial_placement, routes


def random_placement(
    rng: np.random.Generator, *, num_ranks: int, num_experts: int, num_layers: int, num_more: int
) -> Placement:
    """Each expert on one rank, and `num_more` more copies wherever there is room."""
    seats = -(-num_experts // num_ranks) + -(-num_more // num_ranks) + 1
    experts_LRS = np.full((num_layers, num_ranks, seats), EMPTY)
    for layer in experts_LRS:
        for expert in [*rng.permutation(num_experts), *rng.integers(num_experts, size=num_more)]:
            free = [r for r in range(num_ranks) if EMPTY in layer[r] and expert not in layer[r]]
            if free:
                rank = rng.choice(free)
                layer[rank, rng.choice(np.nonzero(layer[rank] == EMPTY)[0])] = expert
    return Placement(experts_LRS.reshape(num_layers, -1), num_experts, num_ranks)


def test_first_placement_is_contiguous_and_even_and_leaves_spare_seats_empty() -> None:
    placement = initial_placement(2, 7, 3, redundant_per_rank=1, spare_seats=1)

    expected = [0, 1, 2, 3, EMPTY, 3, 4, 5, EMPTY, EMPTY, 5, 6, 0, EMPTY, EMPTY]
    assert placement.experts_LP.tolist() == [expected, expected]
    assert placement.seats_per_rank == 5
    assert placement.num_empty_LR.tolist() == [[1, 2, 2]] * 2
    assert placement.replicas(0, 3) == (3, 5)
    assert placement.num_replicas_LE[1].tolist() == [2, 1, 1, 2, 1, 2, 1]


def test_one_rank_holds_every_expert_once_whatever_redundancy_is_asked() -> None:
    placement = initial_placement(1, 4, 1, redundant_per_rank=2, spare_seats=1)

    assert placement.experts_LP.tolist() == [[0, 1, 2, 3, EMPTY, EMPTY, EMPTY]]


@pytest.mark.parametrize(
    ("experts", "complaint"),
    [
        ([[0, 1, 1, EMPTY]], "expert 2 of layer 0 is in no seat"),
        ([[0, 0, 1, 2]], "1 seats repeat"),
        ([[0, 1, 2, 3]], "experts 0 to 3; expected -1 to 2"),
        ([[0, 1, 2]], "a multiple of the 2 ranks"),
    ],
)
def test_broken_placements_are_refused(experts: list[list[int]], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Placement(np.array(experts), 3, 2)


def test_placements_cannot_be_written() -> None:
    placement = initial_placement(1, 4, 2)

    with pytest.raises(ValueError, match="read-only"):
        placement.experts_LP[0, 0] = 1


@pytest.mark.parametrize("seed", range(8))
def test_routes_lead_to_copies_of_the_expert_and_to_the_own_one_alone_if_there_is_one(
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    num_ranks, num_experts = int(rng.integers(1, 7)), int(rng.integers(3, 20))
    placement = random_placement(
        rng, num_ranks=num_ranks, num_experts=num_experts, num_layers=3, num_more=12
    )
    demand_LE = rng.gamma(0.6, size=(3, num_experts)) * rng.integers(0, 2, size=(3, num_experts))

    for rank in range(num_ranks):
        found = routes(placement, rank, demand_LE)

        assert found.table_LER.dtype == found.counts_LE.dtype == np.int32
        for layer, expert in np.ndindex(3, num_experts):
            count = found.counts_LE[layer, expert]
            chosen = set(found.table_LER[layer, expert, :count].tolist())
            assert chosen <= set(placement.replicas(layer, expert))
            assert (found.table_LER[layer, expert, count:] == EMPTY).all()
            own = placement.physical_LRE[layer, rank, expert]
            assert own == EMPTY or chosen == {own}


def routed_demand(placement: Placement, demand_LE: np.ndarray) -> np.ndarray:
    """Load of each rank when every rank sends as many rows, by its routes."""
    demand_LR = np.zeros((placement.num_layers, placement.num_ranks))
    for rank in range(placement.num_ranks):
        found = routes(placement, rank, demand_LE)
        for layer, expert in np.ndindex(demand_LE.shape):
            count = found.counts_LE[layer, expert]
            for physical in found.table_LER[layer, expert, :count]:
                share = demand_LE[layer, expert] / placement.num_ranks / count
                demand_LR[layer, physical // placement.seats_per_rank] += share
    return demand_LR


def test_rows_go_to_the_least_loaded_rank_until_the_ranks_are_level() -> None:
    # Expert 0 is on ranks 0 and 1; rank 1 alone has other work, as much as rows come from afar.
    placement = Placement(np.array([[0, EMPTY, 0, 1, 2, EMPTY, 3, EMPTY]]), 4, 4)

    alone = routes(placement, 2, np.array([[8.0, 4.0, 0.0, 0.0]]))
    spread = routes(placement, 2, np.array([[8.0, 0.0, 0.0, 0.0]]))

    assert set(alone.table_LER[0, 0, : alone.counts_LE[0, 0]].tolist()) == {0}
    assert sorted(spread.table_LER[0, 0, : spread.counts_LE[0, 0]].tolist()) == [0, 2]


def test_routes_level_the_ranks_better_than_an_even_spread() -> None:
    rng = np.random.default_rng(3)
    placement = random_placement(rng, num_ranks=4, num_experts=16, num_layers=6, num_more=8)
    demand_LE = rng.gamma(0.6, size=(6, 16))

    even_LR = np.einsum(
        "lre,le->lr", placement.physical_LRE != EMPTY, demand_LE / placement.num_replicas_LE
    )
    routed_LR = routed_demand(placement, demand_LE)

    assert np.allclose(routed_LR.sum(axis=1), demand_LE.sum(axis=1))
    assert (routed_LR.max(axis=1) <= even_LR.max(axis=1) + 1e-9).all()
    assert routed_LR.max(axis=1).mean() < 0.97 * even_LR.max(axis=1).mean()
