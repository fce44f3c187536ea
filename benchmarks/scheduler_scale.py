"""CPU of the cores when everything is full: the queue, L1, L2. No actors, and a virtual clock.

python -m benchmarks.scheduler_scale                     # every part, bars included
python -m benchmarks.scheduler_scale --parts waiting     # or several of those below

Times are the CPU time of one thread. Beside each stands a reference loop of plain Python that is
timed in the same run, so that records of different machines can be compared.
"""

import gc
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace

from benchmarks import host_scale
from benchmarks.cores import long_turns
from benchmarks.cores.scheduler_bench import Bench, halves, not_found, settings_of
from benchmarks.cores.scheduler_engine import Engine
from benchmarks.records.command_line import add_keep, make_parser, run
from benchmarks.records.record import Figure, report
from raydix.runtime.cache.page_key import KEY_BYTES
from raydix.runtime.config.policies import SchedulingPolicy
from raydix.runtime.messages import host
from raydix.runtime.messages.host import PageSource
from raydix.runtime.messages.mirror import MirrorUpdate
from raydix.runtime.scheduler import events

BURST_TOKENS = 8192
ANSWER_TOKENS = 1024
L1_PAGES = 65_536
SMALL_L2_TOKENS = 65_536
_TURN_BAR_S = 20e-3
"""A turn of the Scheduler ends after 5 ms but for what cannot be divided."""


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
                bench.hear(MirrorUpdate(ready=halves(message.keys[: half * KEY_BYTES])))
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
        bench.answer_host(not_found)
        bench.tick()
        took_s = bench.step()

        stats = bench.core.stats()
        if stats["l1_used_pages"] > 0.98 * L1_PAGES:
            times_s.append(took_s)
            num_full_steps += 1
    return statistics.median(times_s)


def time_long_answers(page_size: int, *, num_running: int = 64) -> float:
    """Mean seconds of a step in which all decode, with L1 full of other prompts.

    Their prompts are of all lengths, so that some fill a page in nearly every step.
    """
    num_pages = 4 * num_running * ANSWER_TOKENS // page_size
    settings = replace(settings_of(page_size, num_pages), max_running_requests=num_running)
    bench = Bench(replace(settings, has_host_memory=False), has_storage=False)
    times_s = []

    def run(num_requests: int, max_tokens: int) -> None:
        for index in range(num_requests):
            bench.submit(ANSWER_TOKENS + index % page_size, max_tokens=max_tokens)
        num_ended = bench.num_ended
        while bench.num_ended < num_ended + num_requests:
            bench.tick()
            counts = bench.plans[0].row_num_tokens
            took_s = bench.step()
            if len(counts) == num_running and (counts == 1).all():
                times_s.append(took_s)

    run(5 * num_running, 1)
    times_s.clear()
    run(num_running, ANSWER_TOKENS)
    return statistics.fmean(times_s)


def time_full_backup_queue() -> float:
    """Most seconds of a step with which some of very many pages begin to be copied to L2."""
    # What other parts have left is not to be freed within a step: here the longest counts.
    gc.collect()
    settings = settings_of(16, 2 * L1_PAGES)
    bench = Bench(settings, has_storage=False)

    def serve(num_ended: int) -> None:
        while bench.num_ended < num_ended:
            bench.answer_host(not_found)
            bench.tick()
            bench.step()

    num_prompts = L1_PAGES // (BURST_TOKENS // settings.page_size)
    for number in range(num_prompts):
        bench.submit(BURST_TOKENS, max_tokens=1)
        serve(number + 1)

    bench.submit(16, max_tokens=512)
    times_s = []
    while bench.num_ended == num_prompts:
        bench.grant(256)
        bench.answer_host(not_found)
        bench.tick()
        times_s.append(bench.step())
    return max(times_s)


def time_long_queue(
    num_waiting: int, policy: SchedulingPolicy, *, num_keys: int
) -> tuple[float, float]:
    """Median seconds of a submission and of a step, with so many requests waiting."""
    bench = Bench(replace(settings_of(64, 16_384), policy=policy), has_storage=False)
    bench.grant(256)
    submits_s: deque[float] = deque(maxlen=200)
    for _ in range(num_waiting):
        submits_s.append(bench.submit(1024, num_keys=num_keys))
        bench.answer_host(not_found)

    steps_s = []
    for _ in range(100):
        bench.tick()
        steps_s.append(bench.step())
        bench.answer_host(not_found)
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
    """Measure an event while many wait for L3."""
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
    ] + [
        *[
            _figure(f"step_64_decoding_l1_full_page_{size}", time_long_answers(size), bar_s, loop_s)
            for size in (16, 64)
        ],
        _figure(f"step_{L1_PAGES}_pages_to_back_up", time_full_backup_queue(), 5e-3, loop_s),
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


def measure_turns(loop_s: float) -> list[Figure]:
    """What concerns 10,000 waiting requests at once."""
    return [
        _figure(f"turn_{name}_{long_turns.NUM_WAITING}_waiting", turn_s, _TURN_BAR_S, loop_s)
        for name, turn_s in long_turns.longest_turns_s().items()
    ]


PARTS: dict[str, Callable[[float], list[Figure]]] = {
    "waiting": measure_waiting,
    "burst": measure_burst,
    "full": measure_full,
    "queue": measure_queue,
    "deep": measure_deep,
    "turns": measure_turns,
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
    run(main)
