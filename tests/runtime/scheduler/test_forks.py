"""Prompts that share a prefix which ends anywhere: the second of them leaves a window there."""

from dataclasses import replace
from typing import Any

import pytest

from raydix.runtime.cache.kv_match import first_needed
from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.cache.recent_prefixes import RecentPrefixes
from raydix.runtime.config.kv_layout import KvLayout
from raydix.runtime.config.policies import PrefetchStrategy, WritePolicy
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.request.chain import Chain
from raydix.runtime.scheduler.settings import PrefetchSettings
from tests.runtime.scheduler.storage_cluster import cluster_with, flush, serve, settle
from tests.simulation.cluster import Cluster
from tests.simulation.layouts import FULL_AND_LATENT, FULL_AND_WINDOW, PAGE_SIZE, WINDOWED

ONLY_WINDOWS = replace(FULL_AND_WINDOW, groups=(WINDOWED,))
WINDOWS_OF_TWO_LENGTHS = replace(
    FULL_AND_LATENT,
    groups=(
        WINDOWED,
        *FULL_AND_LATENT.groups,
        replace(WINDOWED, layers=(4,), window=5 * FULL_AND_LATENT.page_size - 1),
    ),
)
LAYOUTS = [FULL_AND_WINDOW, ONLY_WINDOWS, WINDOWS_OF_TWO_LENGTHS]
SHARED = [token % 5 for token in range(31)]
"""Seven full pages, and three tokens of the next one, all of which prompts share."""
SHARED_PAGES = 7
NUM_SHARED = SHARED_PAGES * PAGE_SIZE


def cluster_of(layout: KvLayout, **changes: Any) -> Cluster:
    num_pages = (64,) * len(layout.groups)
    return cluster_with(layout=layout, num_pages=num_pages, l2_pages=128, **changes)


def branch(number: int) -> list[int]:
    return [*SHARED, *[10 + number] * 14]


def visit(cluster: Cluster, number: int) -> dict[str, int]:
    """Where the prompt of one more branch came from."""
    return serve(cluster, f"branch {number}", branch(number))


def leave_only(cluster: Cluster, tier: str) -> None:
    """What L1 has is left in a tier below."""
    if tier == "l2":
        cluster.to_core(events.FlushL1())
        settle(cluster)
    else:
        flush(cluster)


@pytest.mark.parametrize("tier", ["l2", "l3"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("policy", [WritePolicy.WRITE_THROUGH, WritePolicy.WRITE_BACK])
def test_the_third_branch_finds_what_all_share(
    policy: WritePolicy, layout: KvLayout, tier: str
) -> None:
    cluster = cluster_of(layout, write_policy=policy)
    for number in range(2):
        assert tier not in visit(cluster, number)
        cluster.to_core(events.BackUpL1())
        settle(cluster)
        leave_only(cluster, tier)
    assert visit(cluster, 2)[tier] == NUM_SHARED


@pytest.mark.parametrize("layout", [FULL_AND_WINDOW, WINDOWS_OF_TWO_LENGTHS])
def test_where_no_prompt_is_remembered_full_pages_in_l3_say_where_they_part(
    layout: KvLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages are in L2 only, as after a restart, or where another engine wrote them."""
    cluster = cluster_of(layout)
    for number in range(3):
        forget_prompts(cluster, monkeypatch)
        assert visit(cluster, number).get("l3", 0) == (0 if number < 2 else NUM_SHARED)
        flush(cluster)


def forget_prompts(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster.core._placing, "_prefixes", RecentPrefixes(1 << 20))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_who_waits_for_no_lookup_learns_from_earlier_prompts_where_they_part(
    layout: KvLayout,
) -> None:
    hasty = PrefetchSettings(strategy=PrefetchStrategy.BEST_EFFORT)
    cluster = cluster_of(layout, prefetch=hasty)
    for number in range(2):
        assert "l3" not in visit(cluster, number)
        flush(cluster)
    assert cluster.node.storage is not None
    keys = split_keys(Chain(branch(2), cache_salt=None, page_size=PAGE_SIZE).keys(SHARED_PAGES))
    for group, start in enumerate(first_needed(layout.reaches, SHARED_PAGES)):
        assert all((group, key) in cluster.node.storage.objects for key in keys[start:])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_prefix_that_is_taken_up_in_l1_leaves_its_window_too(layout: KvLayout) -> None:
    cluster = cluster_of(layout)
    visit(cluster, 0)
    assert visit(cluster, 1)["l1"] == NUM_SHARED
    flush(cluster)
    assert visit(cluster, 2)["l3"] == NUM_SHARED
