"""What a third of workloads each has to go through: small tiers, slow ones, and odd prefixes."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from raydix.runtime.config.policies import LoadPolicy, PrefetchStrategy, WritePolicy
from raydix.runtime.scheduler.settings import PrefetchSettings
from tests.simulation.layouts import PAGE_SIZE

if TYPE_CHECKING:
    from tests.simulation.workload import Workload

TURNED_OVER_FRACTION = 0.45
"""The part of workloads that have prompts which return when L1 and L2 have forgotten them."""
_ODD_FRACTION = 0.35
"""The part of workloads that share prefixes which end anywhere."""
_SLOW_FRACTION = 0.45
"""The part of workloads that have a storage which slows; as many have loads that do. Some have no
such tier.
"""
_SLOW_WRITES_FRACTION = 0.45
"""The part of workloads that have slow writes to L3, if there is one."""
_LONGEST_PREFIX = 60


def turn_over(draw: random.Random, workload: Workload) -> Workload:
    """The same workload where prompts come in turns, and L3 alone has room for all of them."""
    settings = workload.settings
    scale = PAGE_SIZE / settings.page_size
    num_pages = [
        round(draw.choice([30, 40]) * scale) if reach is None else pages
        for reach, pages in zip(settings.reaches, settings.num_pages, strict=True)
    ]
    waits = PrefetchStrategy.WAIT_COMPLETE
    strategy = draw.choice([waits, waits, waits, *PrefetchStrategy])
    writes_all = WritePolicy.WRITE_THROUGH
    settings = replace(
        settings,
        num_lanes=settings.lanes_per_group * draw.choice([1, 1, 2]),
        num_pages=tuple(num_pages),
        prefix_caching=True,
        has_host_memory=True,
        load=draw.choice([LoadPolicy.ALWAYS] * 3 + [LoadPolicy.AUTO]),
        write_policy=draw.choice([writes_all, writes_all, writes_all, *WritePolicy]),
        lookup_deadline_s=draw.choice([0.05, 5.0, 5.0]),
        prefetch=PrefetchSettings(strategy=strategy, cap_at_recompute=False),
    )
    return replace(
        workload,
        settings=settings,
        l2_pages=round(draw.choice([24, 40, 64]) * scale),
        comes_in_turns=True,
        num_prefixes=draw.choice([6, 8]),
        prefix_tokens=(40, 48, 60),
        num_requests=30,
        span_s=draw.choice([10.0, 30.0]),
        max_suffix_tokens=draw.choice([1, 6]),
        max_output_tokens=8,
        follow_up_fraction=0.1,
        num_flushes=0,
        num_storage_flushes=0,
        num_storage_switches=draw.choice([0, 0, 0, 1]),
        num_host_kills=draw.choice([0, 0, 1]),
        salt_fraction=0.0,
        score_fraction=draw.choice([0.0, 0.0, 0.15]),
        faults=replace(
            workload.faults,
            storage_failure_fraction=draw.choice([0.0, 0.0, 0.0, 0.1]),
            bad_object_fraction=draw.choice([0.0, 0.0, 0.0, 0.3]),
        ),
    )


def with_odd_prefixes(draw: random.Random, workload: Workload) -> Workload:
    """Often the same workload where prefixes end at no page's border and at no checkpoint."""
    if draw.random() >= _ODD_FRACTION:
        return workload
    shortest = max(workload.prefix_tokens) // 2
    lengths = [draw.randrange(shortest, _LONGEST_PREFIX) for _ in range(4)]
    return replace(workload, prefix_tokens=tuple(lengths))


def with_spells(draw: random.Random, workload: Workload) -> Workload:
    """Often the same workload where storage or loads slow down for a while."""
    num_of_storage, num_of_loads = draw.choice([1, 3]), draw.choice([1, 3])
    is_storage_slow, are_loads_slow = [draw.random() < _SLOW_FRACTION for _ in range(2)]
    return replace(
        workload,
        num_storage_spells=num_of_storage if is_storage_slow else 0,
        num_load_spells=num_of_loads if are_loads_slow else 0,
    )


def with_slow_writes(draw: random.Random, workload: Workload) -> Workload:
    """Often the same workload where pages wait for long to be written to L3, and some in vain."""
    if workload.storage is None or draw.random() >= _SLOW_WRITES_FRACTION:
        return workload
    storage = replace(
        workload.storage,
        batch_pages=draw.choice([1, 2, 4]),
        max_write_batches=1,
    )
    return replace(workload, storage=storage)
