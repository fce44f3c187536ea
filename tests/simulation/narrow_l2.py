"""L2 is smaller than a prompt, which goes through it by turns on its way from L3 to L1."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from raydix.runtime.config.policies import LoadPolicy, PrefetchStrategy, WritePolicy
from raydix.runtime.scheduler.settings import SchedulerSettings
from tests.simulation.layouts import least_pages

if TYPE_CHECKING:
    from tests.simulation.workload import Workload

_NARROW_FRACTION = 0.15
"""The part of workloads with storage that have a narrow L2."""
_L2_PAGES = (4, 10, 24)
_PROMPT_PAGES = (20, 45, 58)
_MAX_PAGES = 66
"""The most pages of a prompt with its suffix and its output."""
_NUM_FLUSHES = 16


def narrow_workload(draw: random.Random, workload: Workload) -> Workload:
    """Now and then the same faults where L2 is smaller than a prompt."""
    if workload.storage is None or draw.random() >= _NARROW_FRACTION:
        return workload
    return narrow(draw, workload)


def narrow(draw: random.Random, workload: Workload) -> Workload:
    """Prompts come back while L1 and L2 are emptied, and L3 is fast and has most of them."""
    return replace(
        workload,
        settings=_settings(draw, workload.settings),
        l2_pages=draw.choice(_L2_PAGES),
        prefix_tokens=_prefixes(draw, workload.settings),
        max_suffix_tokens=2 * workload.settings.page_size,
        max_output_tokens=3 * workload.settings.page_size,
        comes_in_turns=True,
        num_prefixes=6,
        num_requests=30,
        span_s=30.0,
        num_flushes=_NUM_FLUSHES,
        num_storage_switches=0,
        num_storage_flushes=0,
        num_rank_hangs=0,
        # Most would be longer than any prompt may be.
        hint_fraction=0.0,
        score_fraction=0.0,
        salt_fraction=0.0,
        faults=replace(
            workload.faults,
            storage_s=draw.choice([0.0003, 0.003]),
            storage_failure_fraction=draw.choice([0.0, 0.0, 0.02]),
            bad_object_fraction=draw.choice([0.0, 0.0, 0.02]),
        ),
    )


def _settings(draw: random.Random, settings: SchedulerSettings) -> SchedulerSettings:
    """Prompts of so many pages have room in L1, once or several times, and are worth a wait."""
    prefetch = replace(
        settings.prefetch,
        strategy=draw.choice([PrefetchStrategy.WAIT_COMPLETE, PrefetchStrategy.TIMEOUT]),
        base_s=draw.choice([0.3, 100.0]),
        cap_at_recompute=False,
    )
    settings = replace(
        settings, max_model_len=_MAX_PAGES * settings.page_size, chunked_prefill=True
    )
    # Pools of windows were drawn for shorter prompts, perhaps for such as are never cut.
    pools = zip(settings.reaches, settings.num_pages, least_pages(settings), strict=True)
    num_pages = [
        draw.choice([_MAX_PAGES, 100, 200]) if reach is None else max(pages, fewest)
        for reach, pages, fewest in pools
    ]
    return replace(
        settings,
        num_pages=tuple(num_pages),
        prefix_caching=True,
        prefetch=prefetch,
        lookup_deadline_s=5.0,
        load=draw.choice([LoadPolicy.ALWAYS, LoadPolicy.ALWAYS, LoadPolicy.ALWAYS, *LoadPolicy]),
        write_policy=draw.choice([WritePolicy.WRITE_THROUGH] * 3 + [*WritePolicy]),
        min_part_bytes=draw.choice([0, 2 * settings.layout.payload_bytes(0), 8 << 20, 8 << 20]),
    )


def _prefixes(draw: random.Random, settings: SchedulerSettings) -> tuple[int, ...]:
    """Tokens of prefixes that several requests share."""
    return tuple([pages * settings.page_size + draw.randrange(2) for pages in _PROMPT_PAGES])
