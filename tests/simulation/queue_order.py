"""Which scheduling policy a workload has, and whose turn it is by that policy's own words."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

from raydix.runtime.config.policies import SchedulingPolicy

if TYPE_CHECKING:
    from raydix.runtime.scheduler.core import SchedulerCore
    from raydix.runtime.scheduler.queue.waiting import WaitingQueue
    from raydix.runtime.scheduler.request.request import RequestState
    from raydix.runtime.scheduler.settings import SchedulerSettings

_ROUTED_FRACTION = 0.2
"""The part of workloads that schedule by routing keys."""
_OTHERS_FRACTION = 0.5
"""The part of the others that schedule by one of `_OTHERS`."""
_OTHERS = (SchedulingPolicy.SHORTEST_PREFILL, SchedulingPolicy.HRRN, SchedulingPolicy.DFS_WEIGHT)
_CLASS_RATIO = 2**0.25
"""How far `hrrn` may be from the highest ratio: sizes so close count as one."""


class OutOfTurn(AssertionError):
    """A request has its turn before one that goes first by the policy."""


def draw_policy(seed: int, usual: SchedulingPolicy) -> SchedulingPolicy:
    """The policy of a workload."""
    if random.Random(seed + 4).random() < _ROUTED_FRACTION:
        return SchedulingPolicy.ROUTING_KEY
    draw = random.Random(seed + 20)
    return draw.choice(_OTHERS) if draw.random() < _OTHERS_FRACTION else usual


def check_turns(core: SchedulerCore, now_s: float) -> None:
    """Raise OutOfTurn unless on every lane the right request has its turn."""
    for lane in core._lanes:
        ready = list(lane.waiting._turns)
        chosen = lane.waiting.next_turn(now_s)
        if chosen is None:
            if ready:
                raise OutOfTurn(f"{len(ready)} requests have their turn, and none has it")
            continue
        level = _level(chosen, core.settings)
        first = min(_level(request, core.settings) for request in ready)
        if level != first:
            raise OutOfTurn(f"{chosen.request_id} of level {level} goes before level {first}")
        same = [request for request in ready if _level(request, core.settings) == level]
        _check_among(same, chosen, lane.waiting, core.settings, now_s)


def _level(request: RequestState, settings: SchedulerSettings) -> int:
    return request.submit.priority + int(request.arrival_s // settings.ageing_s)


def _check_among(
    ready: list[RequestState],
    chosen: RequestState,
    queue: WaitingQueue,
    settings: SchedulerSettings,
    now_s: float,
) -> None:
    def work(request: RequestState) -> int:
        cached = queue.num_cached_pages(request) * settings.page_size
        return max(1, request.num_tokens - cached)

    def by_arrival(request: RequestState) -> tuple[float, int]:
        return request.arrival_s, request.serial

    match settings.policy:
        case SchedulingPolicy.FCFS:
            expected = min(ready, key=by_arrival)
        case SchedulingPolicy.SHORTEST_PREFILL:
            expected = min(ready, key=lambda request: (work(request), *by_arrival(request)))
        case SchedulingPolicy.DFS_WEIGHT:
            expected = _heaviest(ready, settings)
        case SchedulingPolicy.HRRN:
            best = max((now_s - request.arrival_s) / work(request) for request in ready)
            own = (now_s - chosen.arrival_s) / work(chosen)
            if own * _CLASS_RATIO < best * (1 - 1e-9):
                raise OutOfTurn(f"{chosen.request_id} has waited {own} s a token, another {best}")
            return
        case _:
            return
    if chosen is not expected:
        raise OutOfTurn(f"{chosen.request_id} goes before {expected.request_id}")


def _heaviest(ready: list[RequestState], settings: SchedulerSettings) -> RequestState:
    """The request whose turn it is by how many begin with the same 1, 2, 4, ... pages."""
    num_pages = 1
    while True:
        keys = {
            request.serial: request.chain.keys(num_pages)
            if settings.prefix_caching
            and not request.must_score
            and request.chain.num_prompt_pages >= num_pages
            else b""
            for request in ready
        }
        if not any(keys.values()):
            return min(ready, key=lambda request: (request.arrival_s, request.serial))
        counts = Counter(keys.values())
        place = {
            key: min((one.arrival_s, one.serial) for one in ready if keys[one.serial] == key)
            for key in counts
        }
        heaviest = min(counts, key=lambda key: (-counts[key], place[key]))
        ready = [request for request in ready if keys[request.serial] == heaviest]
        num_pages *= 2
