"""What the Scheduler tells of itself in figures, by name."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from raydix.runtime.metrics import BY_RANK
from raydix.runtime.scheduler.counters import Counters, Duration
from raydix.runtime.scheduler.life.requests import Requests
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.ranks.step_group import StepGroup
from raydix.runtime.scheduler.settings import SchedulerSettings


def counted(counters: Counters, lanes: Sequence[Lane]) -> dict[str, float]:
    """The counters of the engine and of its lanes, added up."""
    total: Counter[str] = Counter()
    for each in (counters, *(lane.counters for lane in lanes)):
        total.update(each.figures())
    copy_s = sum(lane.copy_times.total_s for lane in lanes)
    return {**total, Duration.COPY.value: copy_s}


def of_ranks(lanes: Sequence[Lane], groups: Sequence[StepGroup], now_s: float) -> dict[str, Any]:
    """What each rank and its lane do, and how even those are that share experts."""
    by_rank = [lane.figures_by_rank() for lane in lanes]
    figures: dict[str, Any] = {
        BY_RANK: [of_rank for ranks in by_rank for of_rank in ranks],
        "transfers_in_flight": sum(len(lane.in_flight.transfers) for lane in lanes),
        "dirty_pages": sum(len(lane.backups) for lane in lanes),
        "ranks_attached": sum(len(group.attached) for group in groups),
    }
    # Only one group can share experts: it has all ranks.
    for group in groups:
        if group.experts is not None:
            figures |= group.experts.figures(now_s)
    return figures


def of_requests(requests: Requests, lanes: Sequence[Lane]) -> dict[str, int]:
    """How many requests run, load and wait."""
    num_loading = sum(one.is_loading for lane in lanes for one in lane.prefilling.values())
    num_placed = sum(len(lane.waiting) for lane in lanes)
    return {
        "num_requests_running": sum(len(lane.running) for lane in lanes) - num_loading,
        "num_requests_loading": num_loading,
        "num_requests_waiting": requests.num_waiting(num_placed),
        "num_requests_leaving": len(requests.leaving),
        "l1_reserved_pages": sum(
            promotion.num_pages for lane in lanes for promotion in lane.promotions.reservations
        ),
    }


def of_l1(settings: SchedulerSettings, lanes: Sequence[Lane]) -> dict[str, int]:
    """Pages of L1 by state, per KV group and in all."""
    figures: Counter[str] = Counter()
    for lane in lanes:
        for name, pages in lane.l1.figures().items():
            # Of this KV group, then of all groups together.
            figures[name] += pages
            figures[name.rpartition("_")[0]] += pages
    for index, group in enumerate(settings.layout.groups):
        # 0: its layers look back over everything.
        figures[f"kv_group_window_tokens_{index}"] = group.window or 0
    return dict(figures)
