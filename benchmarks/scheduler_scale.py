"""CPU of the cores when everything is full: the queue, L1, L2. No actors, and a virtual clock.

python -m benchmarks.scheduler_scale                     # every part, bars included
python -m benchmarks.scheduler_scale --parts waiting     # waiting, burst, full, queue, deep, host

Times are the CPU time of one thread. Beside each stands a reference loop of plain Python that is
timed in the same run, so that records of different machines can be compared.
"""

import gc
import statistics
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchmarks import host_scale
from benchmarks.command_line import add_keep, make_parser
from benchmarks.model_shapes import small_model_layout
from benchmarks.record import Figure, report
from benchmarks.scheduler_engine import CLIENT, LINK, Engine, transfer_ids
from raydix.ids import AskingId, RequestId
from raydix.runtime.cache.page_key import KEY_BYTES, MIRROR_KEY_BYTES
from raydix.runtime.config.policies import PrefetchStrategy, SchedulingPolicy
from raydix.runtime.messages import host
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import SubmitRequest
from raydix.runtime.messages.host import PageSource
from raydix.runtime.messages.plan import DeviceSampling, StepPlan, StepResult, TransfersDone
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.core import SchedulerCore
from raydix.runtime.scheduler.settings import PrefetchSettings, SchedulerSettings

VOCAB_SIZE = 30_000
MAX_REQUESTS = 1_000_000
BURST_TOKENS = 8192
L1_PAGES = 65_536
SMALL_L2_TOKENS = 65_536


def settings_of(page_size: int, num_pages: int) -> SchedulerSettings:
    """One lane; the parts change what they are about."""
    return SchedulerSettings(
        layout=small_model_layout(page_size),
        num_lanes=1,
        num_pages=(num_pages,),
        max_model_len=131_072,
        max_waiting_requests=MAX_REQUESTS,
        start_prefill_tokens_per_s=20_000.0,
        lookup_deadline_s=1e9,
        prefetch=PrefetchSettings(strategy=PrefetchStrategy.WAIT_COMPLETE),
    )


class Bench:
    """A Scheduler's core, what it has sent, and the CPU time of each event."""

    def __init__(self, settings: SchedulerSettings, *, has_storage: bool) -> None:
        self.settings = settings
        self.core = SchedulerCore(settings)
        self.now_s = 0.0
        self.plans: deque[StepPlan] = deque()
        self.to_host: deque[host.ToHost] = deque()
        self.num_ended = 0
        self._num_submitted = 0
        self._num_host_pages = 0
        self._random = np.random.default_rng(0)
        self.send(events.RankAttached(rank=0, connection=LINK, incarnation=1, pid=1))
        if settings.has_host_memory:
            self.send(events.HostAttached(connection=LINK))
            self.hear(host.StorageStatus(is_in_use=has_storage, max_staged_pages=(MAX_REQUESTS,)))

    def send(self, event: events.Event) -> float:
        """Give the core an event; returns the CPU seconds that it took."""
        began_s = time.thread_time()
        effects = self.core.handle(event, self.now_s)
        took_s = time.thread_time() - began_s

        for effect in effects:
            match effect:
                case events.SendPlan():
                    self.plans.append(effect.plan)
                case events.SendHost():
                    self.to_host.append(effect.message)
                case events.SendClient():
                    self.num_ended += (
                        effect.delta.finished is not None or effect.delta.failure is not None
                    )
                case _:
                    pass
        return took_s

    def hear(self, message: host.FromHost) -> float:
        """HostMemory says something."""
        return self.send(events.HostMessage(connection=LINK, message=message))

    def submit(self, num_tokens: int, *, max_tokens: int = 64, num_keys: int = 1) -> float:
        """A request with a prompt of its own and one of `num_keys` routing keys arrives."""
        self._num_submitted += 1
        self.now_s += 1e-5
        message = SubmitRequest(
            asking=AskingId(self._num_submitted),
            request_id=RequestId(f"r{self._num_submitted}"),
            token_ids=int32_array(self._random.integers(0, VOCAB_SIZE, num_tokens)),
            sampling=DeviceSampling(seed=0),
            max_tokens=max_tokens,
            routing_key=f"k{self._num_submitted % num_keys}",
        )

        took_s = self.send(events.ClientMessage(client_id=CLIENT, message=message))
        while self.core._replica.unplaced:
            took_s += self.send(events.Tick())
        return took_s

    def grant(self, num_pages: int) -> None:
        """HostMemory hands out free pages."""
        pages = int32_array(range(self._num_host_pages, self._num_host_pages + num_pages))
        self._num_host_pages += num_pages
        self.hear(host.PagesGranted(host_page_ids=pages, generations=pages))

    def tick(self) -> float:
        """Let the core do what is due."""
        took_s = 0.0
        while (due_s := self.core.next_deadline_s()) is not None and due_s <= self.now_s:
            took_s += self.send(events.Tick())
        return took_s

    def step(self) -> float:
        """Carry the oldest plan out with all its copies; returns the CPU seconds of the reports."""
        plan = self.plans.popleft()
        self.now_s += 0.01
        num_sampled = int((plan.row_output_positions >= 0).sum())
        result = StepResult(
            rank=0, step=plan.step, token_ids=int32_array([5] * num_sampled), compute_s=0.01
        )
        took_s = self.send(events.RankMessage(rank=0, connection=LINK, message=result))

        copies = transfer_ids(plan)
        if copies:
            done = TransfersDone(rank=0, transfer_ids=int32_array(copies))
            took_s += self.send(events.RankMessage(rank=0, connection=LINK, message=done))
        return took_s

    def answer_host(self, sources_of: Callable[[host.Lookup], bytes]) -> None:
        """HostMemory answers each lookup with `sources_of` it, and has what is committed."""
        while self.to_host:
            message = self.to_host.popleft()
            match message:
                case host.Lookup():
                    sources = sources_of(message)
                    is_final = PageSource.PENDING not in sources

                    self.hear(
                        host.LookupProgress(
                            lookup_id=message.lookup_id, sources=(sources,), is_final=is_final
                        )
                    )
                case host.CommitPages():
                    self.hear(host.MirrorUpdate(ready=_halves(message.keys)))
                    self.grant(len(message.host_page_ids))
                case _:
                    pass


def _halves(keys: bytes) -> bytes:
    return b"".join(
        keys[start : start + MIRROR_KEY_BYTES] for start in range(0, len(keys), KEY_BYTES)
    )


def _not_found(lookup: host.Lookup) -> bytes:
    num_pages = len(lookup.keys) // KEY_BYTES
    (num_l1_pages,) = lookup.num_l1_pages
    return bytes([PageSource.L1]) * num_l1_pages + bytes([PageSource.NOT_FOUND]) * (
        num_pages - num_l1_pages
    )


def _pending(lookup: host.Lookup) -> bytes:
    return bytes([PageSource.PENDING]) * (len(lookup.keys) // KEY_BYTES)


def time_waiting(num_requests: int, num_tokens: int, *, page_size: int) -> float:
    """Median seconds of an event while so many requests wait for L3; half of each is in L2."""
    bench = Bench(settings_of(page_size, 2**20 // page_size), has_storage=True)
    lookups: list[host.Lookup] = []
    for _ in range(num_requests):
        bench.submit(num_tokens)
        while bench.to_host:
            message = bench.to_host.popleft()
            if isinstance(message, host.Lookup):
                lookups.append(message)
                half = len(message.keys) // KEY_BYTES // 2
                bench.hear(host.MirrorUpdate(ready=_halves(message.keys[: half * KEY_BYTES])))
    assert len(lookups) == num_requests, "every request is looked up"

    times_s = []
    for lookup in lookups[:20]:
        num_pages = len(lookup.keys) // KEY_BYTES
        sources = bytes([PageSource.L2]) * (num_pages // 2) + bytes([PageSource.L3]) * 8
        sources += bytes([PageSource.PENDING]) * (num_pages - len(sources))
        progress = host.LookupProgress(
            lookup_id=lookup.lookup_id, sources=(sources,), is_final=False
        )
        times_s += [bench.hear(progress), bench.send(events.Tick())]
    assert bench.core.stats()["num_requests_waiting"] == num_requests
    return max(statistics.median(times_s[::2]), statistics.median(times_s[1::2]))


def time_full_l1(page_size: int, *, num_running: int = 64) -> float:
    """Median seconds of a step once L1 is full of other prompts, with some requests waiting."""
    settings = replace(settings_of(page_size, L1_PAGES), max_running_requests=num_running)
    bench = Bench(settings, has_storage=False)
    bench.grant(256)
    num_tokens = min(BURST_TOKENS, 512 * page_size)
    times_s: deque[float] = deque(maxlen=400)
    num_submitted = 0
    num_full_steps = 0

    while num_full_steps < times_s.maxlen:  # type: ignore[operator]
        while num_submitted - bench.num_ended < num_running + 16:
            bench.submit(num_tokens, max_tokens=32 + num_submitted % 224)
            num_submitted += 1
        bench.answer_host(_not_found)
        bench.tick()
        took_s = bench.step()

        stats = bench.core.stats()
        if stats["l1_used_pages"] > 0.98 * L1_PAGES:
            times_s.append(took_s)
            num_full_steps += 1
    return statistics.median(times_s)


def time_long_queue(
    num_waiting: int, policy: SchedulingPolicy, *, num_keys: int
) -> tuple[float, float]:
    """Median seconds of a submission and of a step, with so many requests waiting."""
    bench = Bench(replace(settings_of(64, 16_384), policy=policy), has_storage=False)
    bench.grant(256)
    submits_s: deque[float] = deque(maxlen=200)
    for _ in range(num_waiting):
        submits_s.append(bench.submit(1024, num_keys=num_keys))
        bench.answer_host(_not_found)

    steps_s = []
    for _ in range(100):
        bench.tick()
        steps_s.append(bench.step())
        bench.answer_host(_not_found)
    return statistics.median(submits_s), statistics.median(steps_s)


def run_burst(
    num_requests: int, l2_tokens: int, storage_bytes_per_s: float
) -> tuple[float, float, Counter[str]]:
    """Requests of 8k tokens at once, all in L3: Scheduler's CPU, virtual seconds, sources."""
    settings = replace(settings_of(64, 16_384), max_model_len=16_384, start_load_bytes_per_s=20e9)
    engine = Engine(settings, l2_pages=l2_tokens // 64, storage_bytes_per_s=storage_bytes_per_s)
    engine.submit_all(num_requests, BURST_TOKENS, max_tokens=4)
    engine.run()
    return engine.scheduler_s, engine.now_s, engine.sources


def reference_s() -> float:
    """CPU seconds of a fixed amount of plain Python: 100,000 turns over a dict."""
    found = dict.fromkeys(range(1000), 1)
    began_s = time.thread_time()
    for index in range(100_000):
        found[index % 1000] += index
    return time.thread_time() - began_s


def _figure(name: str, seconds: float, bar_s: float, loop_s: float) -> Figure:
    return Figure(
        name=name,
        value=seconds * 1e3,
        unit="ms",
        max_value=bar_s * 1e3,
        baseline=loop_s * 1e3,
        baseline_name="a reference loop of 100,000 turns",
    )


def measure_waiting(loop_s: float) -> list[Figure]:
    """An event while many wait for L3."""
    return [
        _figure(
            "event_1000_waiting_8k", time_waiting(1000, BURST_TOKENS, page_size=64), 0.5e-3, loop_s
        ),
        _figure("event_100_waiting_120k", time_waiting(100, 120_000, page_size=64), 2e-3, loop_s),
    ]


def measure_burst(loop_s: float) -> list[Figure]:
    """300 requests from L3 at once."""
    cpu_s, _, _ = run_burst(300, 300 * BURST_TOKENS * 3, 5e9)
    return [_figure("burst_300_from_l3_cpu", cpu_s, 4.0, loop_s)]


def measure_full(loop_s: float) -> list[Figure]:
    """A step with L1 full."""
    bar_s = 1e-3 + 64 * 15e-6
    return [
        _figure(f"step_64_running_l1_full_page_{size}", time_full_l1(size), bar_s, loop_s)
        for size in (16, 64)
    ]


def measure_queue(loop_s: float) -> list[Figure]:
    """A long queue, by the longest match and by routing keys: few, or one for each request."""
    figures = []
    for suffix, policy, num_keys in (
        ("", SchedulingPolicy.LPM, 1),
        ("_16_routing_keys", SchedulingPolicy.ROUTING_KEY, 16),
        ("_10000_routing_keys", SchedulingPolicy.ROUTING_KEY, 10_000),
    ):
        submit_s, step_s = time_long_queue(10_000, policy, num_keys=num_keys)
        figures += [
            _figure(f"submit_10000_waiting{suffix}", submit_s, 1e-3, loop_s),
            _figure(f"step_10000_waiting{suffix}", step_s, 3e-3, loop_s),
        ]
    return figures


def measure_deep(loop_s: float) -> list[Figure]:
    """1,000 requests from L3 through a small L2, and through a large one."""
    _, large_s, _ = run_burst(1000, 16 * SMALL_L2_TOKENS, 5e9)
    _, small_s, sources = run_burst(1000, SMALL_L2_TOKENS, 5e9)
    refused = sources["computed:no_host_page"] / sources.total()
    return [
        Figure(
            name="small_l2_time_over_large", value=small_s / large_s, unit="times", max_value=1.15
        ),
        Figure(
            name="small_l2_no_host_page", value=100 * refused, unit="% of tokens", max_value=5.0
        ),
    ]


PARTS: dict[str, Callable[[float], list[Figure]]] = {
    "waiting": measure_waiting,
    "burst": measure_burst,
    "full": measure_full,
    "queue": measure_queue,
    "deep": measure_deep,
    "host": lambda loop_s: host_scale.figures(host_scale.measure()),
}


def main() -> int:
    """Measure, print and keep the record; 1 below a bar."""
    parser = make_parser(__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    add_keep(parser)
    options = parser.parse_args()

    # What the benchmark itself holds is not to be looked through again by every collection.
    gc.collect()
    gc.freeze()
    figures: list[Figure] = []
    for part in options.parts:
        figures += PARTS[part](reference_s())
    return report("scheduler_scale", {"parts": options.parts}, figures, keep_in=options.keep)


if __name__ == "__main__":
    sys.exit(main())
