"""Prompts of many tenants, each of which shares a prefix that ends anywhere with all of its own.

The law: from the third visit of a tenant on its prefix is found, in whatever tier the visits before
were left and whatever windows the layers look back over. The second visit may still compute it, as
only that one can show where prompts part.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from raydix.runtime.cache.host.open_lookup import OpenLookup
from raydix.runtime.cache.recent_prefixes import RecentPrefixes
from raydix.runtime.config.policies import WritePolicy
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.life import publishing
from tests.runtime.scheduler.storage_cluster import cluster_with, flush, serve, settle
from tests.simulation.cluster import Cluster
from tests.simulation.layouts import LAYOUT, draw_states, draw_windows
from tests.simulation.modelled_tokens import VOCABULARY

NUM_TENANTS, NUM_VISITS = 2, 4
MAX_PREFIX, MAX_TAIL = 60, 20
SEEDS = range(16)
MAX_SEEDS = 60
Patch = Callable[[pytest.MonkeyPatch], None]


def run_visits(seed: int) -> None:
    """Serve all visits in a drawn order, and leave what L1 has in a drawn tier after each.

    Where some layer sees everything, its pages in L2 and L3 say enough: half of these runs forget
    the prompts before each visit, as a Scheduler does that is started anew.
    """
    draw = random.Random(seed)
    layout = draw_states(random.Random(seed), draw_windows(draw, LAYOUT))
    is_forgetful = None in layout.reaches and draw.random() < 0.5
    policy = draw.choice([WritePolicy.WRITE_THROUGH, WritePolicy.WRITE_BACK])
    cluster = cluster_with(
        layout=layout,
        num_pages=(240,) * len(layout.groups),
        write_policy=policy,
        max_model_len=100,
        l2_pages=512,
    )

    prefixes = [draw_tokens(draw, draw.randint(1, MAX_PREFIX)) for _ in range(NUM_TENANTS)]
    visits = [tenant for tenant in range(NUM_TENANTS) for _ in range(NUM_VISITS)]
    draw.shuffle(visits)
    num_visits = [0] * NUM_TENANTS
    for number, tenant in enumerate(visits):
        if is_forgetful:
            cluster.core._placing._prefixes = RecentPrefixes(1)
        # Tails part at once.
        tail = [num_visits[tenant], *draw_tokens(draw, draw.randint(0, MAX_TAIL))]
        sources = serve(cluster, f"visit {number}", prefixes[tenant] + tail)
        num_cached = sum(sources.get(tier, 0) for tier in ("l1", "l2", "l3"))
        num_visits[tenant] += 1
        if num_visits[tenant] > 2:
            size = layout.page_size
            assert num_cached >= len(prefixes[tenant]) // size * size, (number, sources)
        leave_in(cluster, draw.choice(["l1", "l2", "l3"]))


def draw_tokens(draw: random.Random, num_tokens: int) -> list[int]:
    return [draw.randrange(NUM_VISITS, VOCABULARY) for _ in range(num_tokens)]


def leave_in(cluster: Cluster, tier: str) -> None:
    cluster.to_core(events.BackUpL1())
    settle(cluster)
    if tier == "l2":
        cluster.to_core(events.FlushL1())
        settle(cluster)
    elif tier == "l3":
        flush(cluster)


@pytest.mark.parametrize("seed", SEEDS)
def test_third_visit_finds_the_shared_prefix(seed: int) -> None:
    run_visits(seed)


def prompts_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is learnt from the prompts before."""
    monkeypatch.setattr(RecentPrefixes, "num_shared", lambda self, keys: 0)


def full_pages_in_l3_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where prompts are forgotten, what L1 and L2 hold says alone where chains part."""
    report = OpenLookup.report
    monkeypatch.setattr(
        OpenLookup, "report", lambda self, now_s: replace(report(self, now_s), num_full_pages=0)
    )


def parting_counts_a_page_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The window is left a page before the place where prompts part."""
    num_shared = RecentPrefixes.num_shared
    monkeypatch.setattr(
        RecentPrefixes, "num_shared", lambda self, keys: max(0, num_shared(self, keys) - 1)
    )


def windows_where_prompts_part_are_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows are kept before ends of prompts and outputs alone."""
    between = publishing.checkpoints_between

    def without(start: int, stop: int, distance: int, others: Any) -> list[int]:
        return between(start, stop, distance, others[1:])

    monkeypatch.setattr(publishing, "checkpoints_between", without)


@pytest.mark.parametrize(
    "mutant",
    [
        prompts_are_forgotten,
        full_pages_in_l3_are_not_told,
        parting_counts_a_page_short,
        windows_where_prompts_part_are_passed_by,
    ],
)
def test_mutant_is_found(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    for seed in range(MAX_SEEDS):
        try:
            run_visits(seed)
        except AssertionError:
            return
    pytest.fail(f"{MAX_SEEDS} seeds did not find it")
