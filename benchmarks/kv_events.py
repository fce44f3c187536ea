"""What KV events cost the Scheduler: CPU of its thread with a follower, and without one.

python -m benchmarks.kv_events

Both cores on a virtual clock (`benchmarks/cores`), in pairs of runs in turns. With a follower the
time to gather and encode its news counts, too, as the Scheduler's thread does that. That effects
are looked at one by one counts in both runs, as it is done for others, too.
"""

import gc
from dataclasses import replace
from typing import Any

from benchmarks.cores.scheduler_bench import settings_of
from benchmarks.cores.scheduler_engine import LINK, Engine
from benchmarks.records.command_line import add_keep, make_parser, run
from benchmarks.records.record import Figure, report
from raydix.runtime.messages.codec import encode
from raydix.runtime.messages.kv_events import KvEvent, KvNews
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.settings import SchedulerSettings

PAGE_SIZE = 64
BATCH_S = 0.01
"""The time for which news is gathered, as `FollowerLinks` does."""
NUM_PAIRS = 9
BAR = 1.03
LOADS = {"decode": (64, 512, 1024), "prefill": (200, 8192, 8)}
"""Requests, tokens of each prompt, and of each answer."""


class SendingEngine(Engine):
    """An engine without a follower; news would be encoded as it would be sent."""

    def __init__(self, settings: SchedulerSettings, **arguments: Any) -> None:
        super().__init__(settings, **arguments)
        self._unsent: list[KvEvent] = []
        self._sent_s = 0.0
        self.num_events = self.num_bytes = 0
        handle = self._core.handle

        def handle_and_encode(event: events.Event, now_s: float) -> list[events.Effect]:
            effects = handle(event, now_s)
            for effect in effects:
                if isinstance(effect, events.TellFollower):
                    self._unsent += effect.events
            if self._unsent and now_s >= self._sent_s + BATCH_S:
                self._send(now_s)
            return effects

        self._core.handle = handle_and_encode  # type: ignore[method-assign]

    def _send(self, now_s: float) -> None:
        self.num_events += len(self._unsent)
        self.num_bytes += len(encode(KvNews(events=tuple(self._unsent), is_whole=True)))
        self._unsent.clear()
        self._sent_s = now_s


class FollowedEngine(SendingEngine):
    """An engine with one follower."""

    def __init__(self, settings: SchedulerSettings, **arguments: Any) -> None:
        super().__init__(settings, **arguments)
        self._to_core(events.FollowerAttached(connection=LINK))


def time_run(kind: type[Engine], num_requests: int, num_tokens: int, max_tokens: int) -> float:
    """CPU seconds of the Scheduler for such requests, half of which go beyond L1."""
    pages = num_requests * (num_tokens + max_tokens) // PAGE_SIZE
    settings = replace(settings_of(PAGE_SIZE, pages // 2), has_host_memory=True)
    engine = kind(settings, l2_pages=2 * pages)
    engine.submit_all(num_requests, num_tokens, max_tokens=max_tokens)
    # No collection falls into one run and not into another one.
    gc.collect()
    gc.disable()
    engine.run()
    gc.enable()
    return engine.scheduler_s


def measure(load: tuple[int, int, int]) -> tuple[float, float]:
    """CPU seconds with a follower, and without one: the least of runs in turns.

    What else runs on the machine makes a run slower, and none faster.
    """
    with_one, without = [], []
    for _ in range(NUM_PAIRS):
        without.append(time_run(SendingEngine, *load))
        with_one.append(time_run(FollowedEngine, *load))
    return min(with_one), min(without)


def main() -> int:
    """Measure, print and keep the record; 1 above a bar."""
    parser = make_parser(__doc__)
    add_keep(parser)
    options = parser.parse_args()
    figures = []
    for name, load in LOADS.items():
        with_one, without = measure(load)
        ratio = with_one / without
        figures.append(Figure(name=f"{name}_cpu", value=ratio, unit="ratio", max_value=BAR))
        figures.append(
            Figure(
                name=f"{name}_cpu_s",
                value=with_one,
                unit="s",
                baseline=without,
                baseline_name="without a follower",
            )
        )
    return report("kv_events", {"page_size": PAGE_SIZE, **LOADS}, figures, keep_in=options.keep)


if __name__ == "__main__":
    run(main)
