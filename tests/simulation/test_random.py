"""Random workloads on the simulated cluster: exact answers, all tokens counted, nothing held."""

import pytest

from raydix.runtime.cache.host import fetch_turns, lookups, reads, storage
from raydix.runtime.scheduler import core, pieces, waiting
from tests.simulation.checks import sources_of
from tests.simulation.workload import draw_workload, run_workload

_NUM_SEEDS = 150
_SEEDS_PER_TEST = 10
_NUM_FOR_REACH = 40


@pytest.mark.parametrize("first_seed", range(_NUM_FOR_REACH, _NUM_SEEDS, _SEEDS_PER_TEST))
def test_random_workloads_end_exactly(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + _SEEDS_PER_TEST):
        run_workload(draw_workload(seed))


def test_random_workloads_end_exactly_in_the_smallest_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (pieces, waiting, lookups, fetch_turns, storage):
        monkeypatch.setattr(module, "_PIECE", 1)
    monkeypatch.setattr(core, "_MAX_DUE", 1)
    monkeypatch.setattr(reads, "_CROWD", 1)
    for seed in range(_NUM_SEEDS, _NUM_SEEDS + _SEEDS_PER_TEST):
        run_workload(draw_workload(seed))


def test_random_workloads_reach_every_tier_and_reason() -> None:
    reached: set[str] = set()
    num_promoted = 0
    for seed in range(_NUM_FOR_REACH):
        cluster = run_workload(draw_workload(seed))
        reached.update(sources_of(cluster))
        num_promoted += cluster.count("promoted_pages")
    assert num_promoted
    reasons = {
        "last_token",
        "partial_page",
        "not_found",
        "timed_out",
        "cancelled",
        "recompute_cheaper",
    }
    reasons |= {"bad_object", "io_error", "caching_off"}
    assert reached >= {"l1", "l2", "l3", *(f"computed:{reason}" for reason in reasons)}
