"""The longest turn of a Scheduler after something that concerns all of many waiting requests."""

import gc
from collections.abc import Callable, Iterator
from enum import Enum, auto

from benchmarks.cores.scheduler_bench import Bench, not_found, pending, settings_of
from benchmarks.cores.scheduler_engine import CLIENT, LINK
from raydix.runtime.messages import host
from raydix.runtime.scheduler import events

NUM_WAITING = 10_000
_TOKENS = 1024
_DEADLINE_S = 1e5
_LATE_S = 2e9
"""Behind every deadline."""


class Waits(Enum):
    """What the requests wait for."""

    ROOM = auto()
    """Their lookups are answered."""
    STORAGE = auto()
    """Their lookups are answered in part."""
    LOOKUPS = auto()
    """Nothing has been answered."""


def _waiting(waits: Waits) -> Bench:
    bench = Bench(settings_of(64, 16_384), has_storage=True)
    bench.grant(256)
    for _ in range(NUM_WAITING):
        bench.submit(_TOKENS, deadline_s=_DEADLINE_S)
        if waits is Waits.ROOM:
            bench.answer_host(not_found)
        elif waits is Waits.STORAGE:
            bench.answer_host(pending)
    return bench


def _client_gone(bench: Bench) -> float:
    return bench.send(events.ClientGone(client_id=CLIENT))


def _deadlines(bench: Bench) -> float:
    bench.now_s += _LATE_S
    return bench.send(events.Tick())


def _host_lost(bench: Bench) -> float:
    return bench.send(events.HostLost(connection=LINK))


def _storage_off(bench: Bench) -> float:
    return bench.hear(host.StorageStatus(is_in_use=False, max_staged_pages=(1000,)))


_EVENTS: dict[str, Callable[[Bench], float]] = {
    "client_gone": _client_gone,
    "deadlines": _deadlines,
    "host_lost": _host_lost,
    "storage_off": _storage_off,
}


def _turns_s(bench: Bench, begin: Callable[[Bench], float]) -> Iterator[float]:
    """CPU seconds of the event, and of each turn that follows from it."""
    yield begin(bench)
    while (due_s := bench.core.next_deadline_s()) is not None and due_s <= bench.now_s:
        yield bench.send(events.Tick())


def longest_turns_s() -> dict[str, float]:
    """CPU seconds of one thread, by event and what the requests wait for."""
    longest_s = {}
    for name, begin in _EVENTS.items():
        for waits in Waits:
            bench = _waiting(waits)
            # What waits is not to be looked through again by a collection.
            gc.collect()
            gc.freeze()
            longest_s[f"{name}_{waits.name.lower()}"] = max(_turns_s(bench, begin))
            gc.unfreeze()
    # As it was before.
    gc.collect()
    gc.freeze()
    return longest_s
