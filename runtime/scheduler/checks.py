"""Invariants that no owner can prove alone."""

from collections.abc import Sequence

from raydix.errors import AccountingError
from raydix.runtime.scheduler.life.requests import Requests
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.ranks.step_group import StepGroup
from raydix.runtime.scheduler.request.state import (
    ADMITTED,
    PREPARING,
    QUEUED,
    State,
    require_states,
)
from raydix.runtime.scheduler.sources.kv_source import KvSource
from raydix.runtime.scheduler.timers import Timers


def check_lanes(lanes: Sequence[Lane], step_groups: Sequence[StepGroup]) -> None:
    """Raise AccountingError unless lanes agree with what they hold, and with their step groups."""
    for lane in lanes:
        # Others have no block table, of which a lane counts the pages.
        require_states("a lane", lane.running.values(), ADMITTED)
        lane.check()
        lane.in_flight.check()
    for step_group in step_groups:
        step_group.check([lane.l1.last_step for lane in step_group.pick(lanes)])
        if step_group.experts is not None:
            step_group.experts.check()


def check_requests(
    requests: Requests, lanes: Sequence[Lane], source: KvSource, timers: Timers
) -> None:
    """Raise AccountingError unless each request is with the owner that its state names, alone."""
    require_states("nobody", requests.unplaced.values(), {State.PLACING})
    for lane in lanes:
        decoding = [one for one in lane.running.values() if one.is_decoding]
        require_states("a queue", lane.waiting.requests.values(), QUEUED)
        require_states("a step", lane.prefilling.values(), PREPARING)
        require_states("a batch", decoding, {State.DECODING})

    waiting = {name for lane in lanes for name in lane.waiting.requests}
    running = [name for lane in lanes for name in lane.running]
    placed = [*running, *waiting, *requests.unplaced]
    if sorted(placed) != sorted(requests.living):
        raise AccountingError(f"{len(requests.living)} requests live, {len(placed)} are on a lane")
    source.check(waiting | requests.unplaced.keys())
    timers.check({request.ticket for request in requests.living.values()})
    requests.check()
    requests.orphans.check(running=set(running), waiting=waiting | requests.unplaced.keys())


def check_idle(lanes: Sequence[Lane], source: KvSource) -> None:
    """Raise AccountingError if something is held although no request lives."""
    if source.num_claimed_pages:
        raise AccountingError(
            f"the engine is idle, but {source.num_claimed_pages} pages are claimed"
        )
    if any(lane.l1.tree.num_locks for lane in lanes):
        raise AccountingError("the engine is idle, but pages are locked")
