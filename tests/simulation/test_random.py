"""Random workloads on the simulated cluster: exact answers, all tokens counted, nothing held."""

from collections import Counter

import numpy as np
import pytest

from raydix.runtime.cache.host import fetch_turns, fetching, lookups, reads
from raydix.runtime.scheduler import pieces
from raydix.runtime.scheduler.life import expiry
from raydix.runtime.scheduler.queue import waiting
from tests.simulation.checks import sources_of, storage_share
from tests.simulation.layouts import least_pages
from tests.simulation.workload import Workload, draw_workload, run_workload

_NUM_SEEDS = 150
_SEEDS_PER_TEST = 5
_NUM_IN_PIECES = 10
_FOR_REACH = (2, 16, 23, 31, 32, 34, 56)
"""Cheap seeds of which two at least reach each tier and reason."""


@pytest.mark.part
@pytest.mark.parametrize("first_seed", range(0, _NUM_SEEDS, _SEEDS_PER_TEST))
def test_random_workloads_end_exactly(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + _SEEDS_PER_TEST):
        run_workload(draw_workload(seed))


@pytest.mark.part
@pytest.mark.parametrize("seed", range(_NUM_SEEDS, _NUM_SEEDS + _NUM_IN_PIECES))
def test_random_workloads_end_exactly_in_the_smallest_pieces(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (pieces, waiting, lookups, fetch_turns, fetching):
        monkeypatch.setattr(module, "_PIECE", 1)
    monkeypatch.setattr(expiry, "_MAX_DUE", 1)
    monkeypatch.setattr(reads, "_CROWD", 1)
    run_workload(draw_workload(seed))


def test_random_workloads_reach_every_tier_and_reason() -> None:
    reached: Counter[str] = Counter()
    num_promoted = 0
    for seed in _FOR_REACH:
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
    assert reached.keys() >= {"l1", "l2", "l3", *(f"computed:{reason}" for reason in reasons)}
    assert storage_share(reached) >= 0.1, "the faults of L3 are hardly met"


def test_pools_of_drawn_workloads_have_room_for_any_request() -> None:
    for seed in (*range(300), 10196, 10765):
        settings = draw_workload(seed).settings
        assert all(np.greater_equal(settings.num_pages, least_pages(settings))), seed


def test_a_third_of_workloads_has_each_hardship() -> None:
    workloads = [draw_workload(seed) for seed in range(600)]

    stored = [workload for workload in workloads if workload.storage is not None]
    num_loading = sum(
        workload.num_load_spells > 0 and workload.settings.has_host_memory for workload in workloads
    )
    num_hard = {
        "tiers turn over": sum(workload.comes_in_turns for workload in workloads),
        "prefixes end anywhere": sum(_has_odd_prefixes(workload) for workload in workloads),
        "storage slows": sum(workload.num_storage_spells > 0 for workload in stored),
        "loads slow": num_loading,
        "writes wait": sum(_has_slow_writes(workload) for workload in stored),
    }
    assert all(0.3 <= num / len(workloads) <= 0.65 for num in num_hard.values()), num_hard


def _has_odd_prefixes(workload: Workload) -> bool:
    return any(length % workload.settings.page_size for length in workload.prefix_tokens)


def _has_slow_writes(workload: Workload) -> bool:
    storage = workload.storage
    return storage is not None and storage.max_write_batches == 1 and storage.batch_pages <= 4
