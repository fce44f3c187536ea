"""What each eviction policy of L1 and each scheduling policy is worth, on traces and workloads.

    python -m benchmarks.policies
    python -m benchmarks.policies --part queue      # eviction, queue or times alone

Eviction, at the quick depth: the tree of L1 alone, one request after another, whole blocks, beside
MIN. Sizes are blocks of 512 tokens; of a made-up workload L1 holds a twentieth and a fifth of all
its blocks. The default policy, LRU, may be no more than 0.3 points below another one on average on
both traces: what helps one alone is no default. `reuse` has bars of its own, in L1 and in L2: what
it finds of the conversation trace, what it may lose to LRU anywhere, and the time that it takes.

The queue, at the timed depth: an engine of one H200 and the first requests of the conversation
trace, at 0.7 and 1.1 of what it can do. No policy may let a request wait more than three times as
long as the longest wait under `fcfs`. Equal seeds give equal figures,
however many processes share the work.
"""

import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean

import numpy as np

from benchmarks.cores.queue_loads import LOADS, QueueRun, capacity_of, run_queue
from benchmarks.records.command_line import add_results, count, make_parser, run
from benchmarks.records.record import Figure, report
from raydix.runtime.cache.page_key import KEY_BYTES, root_key
from raydix.runtime.cache.page_pool import PagePool
from raydix.runtime.cache.radix_node import Segment
from raydix.runtime.cache.radix_tree import RadixTree
from raydix.runtime.cache.reuse_chances import ReuseChances, kind_of
from raydix.runtime.config.policies import EvictionPolicy, SchedulingPolicy
from raydix.runtime.foresight.plan.limits import chains_of, min_blocks
from raydix.runtime.foresight.plan.quick import HostTier, Tier, TreeTier
from raydix.runtime.foresight.traces import BLOCK_TOKENS, TraceRequest, read_trace
from raydix.runtime.foresight.workloads import WORKLOADS, make_trace

TRACES = Path(__file__).parent / "traces"
SIZES = {
    "conversation": (1_000, 2_000, 5_000, 10_000, 20_000, 30_000),
    "agentic": (500, 1_000, 2_000),
}
PARTS = (0.05, 0.2)
SEED = 41
MAX_LOSS = 0.3
MIN_REUSE = {2_000: 9.0, 5_000: 14.0}
"""What `reuse` is to find of the conversation trace, in percent, by blocks."""
MAX_VICTIM_US = 15.0
MAX_TOUCH_US = 3.0
TOUCHES_PER_REQUEST = 4
MAX_LONGEST_WAIT = 3.0
"""The longest wait under any scheduling policy, as a multiple of that under `fcfs`."""
QUEUE_TRACE = "conversation"
PART_NAMES = ("eviction", "l2", "queue", "times")


@lru_cache(maxsize=1)
def requests_of(name: str) -> Sequence[TraceRequest]:
    """The requests of a trace or a made-up workload."""
    if name in WORKLOADS:
        return make_trace(WORKLOADS[name], SEED)
    return read_trace(TRACES / f"{name}.jsonl.gz")


def cases() -> Iterator[tuple[str, int]]:
    """Each trace and workload with each size at which it is replayed."""
    for name, sizes in SIZES.items():
        yield from ((name, num_blocks) for num_blocks in sizes)
    for name in WORKLOADS:
        num_all = len({block for each in requests_of(name) for block in each.blocks})
        yield from ((name, int(part * num_all)) for part in PARTS)


def found_percent(requests: Sequence[TraceRequest], tier: Tier) -> float:
    """What a tier has of the prompts' tokens."""
    num_hits = 0
    for request in requests:
        num_hits += tier.begin(request, request.arrival_s)
        tier.end(request, None, request.arrival_s)
    return 100 * num_hits * BLOCK_TOKENS / sum(each.num_tokens for each in requests)


def found_at(case: tuple[str, int]) -> tuple[dict[EvictionPolicy, float], float]:
    """What each policy finds in a case, and what MIN does."""
    name, num_blocks = case
    requests = requests_of(name)
    row = {
        policy: found_percent(requests, TreeTier(num_blocks, policy)) for policy in EvictionPolicy
    }
    chains = chains_of(requests, with_partial=False)
    num_tokens = sum(request.num_tokens for request in requests)
    return row, 100 * BLOCK_TOKENS * sum(min_blocks(chains, num_blocks)) / num_tokens


def measure_eviction(pool: ProcessPoolExecutor) -> Iterator[Figure]:
    """Every policy in every case, then what LRU lacks of another one on each of both traces."""
    gains: dict[EvictionPolicy, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    all_cases, lost_by_reuse = [*cases()], 0.0
    for (name, num_blocks), (row, best) in zip(
        all_cases, pool.map(found_at, all_cases), strict=True
    ):
        lost_by_reuse = max(lost_by_reuse, row[EvictionPolicy.LRU] - row[EvictionPolicy.REUSE])
        text = "  ".join(f"{policy} {value:.2f}" for policy, value in row.items())
        print(f"{name} {num_blocks}: {text}  MIN {best:.2f}", file=sys.stderr, flush=True)
        for policy, value in row.items():
            if name in SIZES:
                gains[policy][name].append(value - row[EvictionPolicy.LRU])
            is_bar = policy is EvictionPolicy.REUSE and name == "conversation"
            yield Figure(
                name=f"{name}_{num_blocks}_{policy}",
                value=value,
                unit="%",
                min_value=MIN_REUSE.get(num_blocks) if is_bar else None,
                baseline=best,
                baseline_name="MIN",
            )
    lost = max(min(map(fmean, of_traces.values())) for of_traces in gains.values())
    yield Figure(name="lost_by_lru", value=lost, unit="points on both traces", max_value=MAX_LOSS)
    yield Figure(
        name="lost_by_reuse", value=lost_by_reuse, unit="points at most", max_value=MAX_LOSS
    )


def found_in_l2(case: tuple[str, int]) -> tuple[float, float]:
    """What L2 finds in a case under LRU and under `reuse`."""
    name, num_blocks = case
    policies = (EvictionPolicy.LRU, EvictionPolicy.REUSE)
    lru, reuse = (found_percent(requests_of(name), HostTier(num_blocks, each)) for each in policies)
    return lru, reuse


def measure_l2(pool: ProcessPoolExecutor) -> Iterator[Figure]:
    """What L2 finds under `reuse` in every case, beside LRU."""
    all_cases, lost = [*cases()], 0.0
    for (name, num_blocks), (lru, reuse) in zip(
        all_cases, pool.map(found_in_l2, all_cases), strict=True
    ):
        lost = max(lost, lru - reuse)
        print(f"L2 {name} {num_blocks}: lru {lru:.2f}  reuse {reuse:.2f}", file=sys.stderr)
        yield Figure(
            name=f"l2_{name}_{num_blocks}_reuse",
            value=reuse,
            unit="%",
            min_value=MIN_REUSE.get(num_blocks) if name == "conversation" else None,
            baseline=lru,
            baseline_name="LRU",
        )
    yield Figure(name="lost_by_reuse_in_l2", value=lost, unit="points at most", max_value=MAX_LOSS)


def measure_queue(pool: ProcessPoolExecutor, num_requests: int) -> Iterator[Figure]:
    """Every scheduling policy below and above capacity: hits, times to the first token."""
    trace = requests_of(QUEUE_TRACE)[:num_requests]
    capacity = pool.submit(capacity_of, trace).result()
    yield Figure(name="queue_capacity", value=capacity, unit="requests/s")
    runs = [
        QueueRun(policy=policy, load=load, capacity=capacity)
        for load in LOADS
        for policy in SchedulingPolicy
    ]
    longest_s: dict[float, float] = {}
    outcomes = pool.map(run_queue, runs, [trace] * len(runs))
    for each, outcome in zip(runs, outcomes, strict=True):
        # The first policy of each load is `fcfs`.
        most_s = MAX_LONGEST_WAIT * longest_s.setdefault(each.load, outcome.longest_s)
        print(
            f"load {each.load} {each.policy}: hits {outcome.hit_percent:.2f} %, first token p50 "
            f"{outcome.p50_s:.2f} s, p90 {outcome.p90_s:.2f} s, longest {outcome.longest_s:.2f} s",
            file=sys.stderr,
            flush=True,
        )
        name = f"queue_{each.load}_{each.policy}"
        yield Figure(name=f"{name}_hits", value=outcome.hit_percent, unit="%")
        yield Figure(name=f"{name}_ttft_p50", value=outcome.p50_s, unit="s")
        yield Figure(name=f"{name}_ttft_p90", value=outcome.p90_s, unit="s")
        yield Figure(name=f"{name}_longest", value=outcome.longest_s, unit="s", max_value=most_s)


def time_reuse() -> Iterator[Figure]:
    """CPU time of `reuse` on the conversation trace: a victim, and a node that a request touches.

    A touch is what LRU does not do: it counts a use, gives a worth, and has its part of reviews.
    """
    requests = read_trace(TRACES / "conversation.jsonl.gz")
    chances, num_touches = ReuseChances(), 0
    draw = random.Random(SEED)
    ages_s = [draw.expovariate(0.01) for _ in range(TOUCHES_PER_REQUEST)]
    begin_s = time.process_time()
    for request in requests:
        chances.begin_request(request.arrival_s)
        for age_s in ages_s:
            kind = kind_of(num_touches % 9, len(request.blocks), 1 + num_touches % 2)
            chances.used_again(kind, request.arrival_s - age_s, 24)
            chances.worth_s(kind)
            num_touches += 1
        chances.dropped(kind, request.arrival_s - 100, 24)
    touch_us = 1e6 * (time.process_time() - begin_s) / num_touches

    tree, pool = RadixTree(page_size=1, eviction=EvictionPolicy.REUSE), PagePool(len(requests))
    for number in range(len(requests)):
        packed = np.array([number], dtype="<i4").tobytes()
        lock = tree.lock(tree.match(root_key(), packed), 0, now_s=float(number))
        page_ids = pool.allocate(1)
        assert page_ids is not None
        key = number.to_bytes(KEY_BYTES, "big")
        tree.insert(lock, packed, (page_ids,), key, segment=Segment.PROMPT, now_s=float(number))
        tree.unlock(lock, last_step=0)
    begin_s = time.process_time()
    for _ in requests:
        tree.evict((1,))
    victim_us = 1e6 * (time.process_time() - begin_s) / len(requests)
    yield Figure(name="reuse_touch", value=touch_us, unit="us", max_value=MAX_TOUCH_US)
    yield Figure(name="reuse_victim", value=victim_us, unit="us", max_value=MAX_VICTIM_US)


def measure(parts: Sequence[str], num_processes: int, num_requests: int) -> Iterator[Figure]:
    """The parts that are asked for; times are taken while nothing else runs."""
    with ProcessPoolExecutor(num_processes, mp_context=get_context("spawn")) as pool:
        if "eviction" in parts:
            yield from measure_eviction(pool)
        if "l2" in parts:
            yield from measure_l2(pool)
        if "queue" in parts:
            yield from measure_queue(pool, num_requests)
    if "times" in parts:
        yield from time_reuse()


def main() -> int:
    """Returns 1 if a bar is not met."""
    parser = make_parser(__doc__)
    parser.add_argument("--part", choices=PART_NAMES, help="this part alone")
    parser.add_argument("--processes", type=count, default=2, help="run side by side")
    parser.add_argument("--requests", type=count, default=600, help="of the queue, the first ones")
    add_results(parser, help="folder for the record", default=None)
    arguments = parser.parse_args()
    parts = PART_NAMES if arguments.part is None else (arguments.part,)
    config = {"seed": SEED, "parts": parts, "queue_requests": arguments.requests}
    figures = [*measure(parts, arguments.processes, arguments.requests)]
    return report("policies", config, figures, keep_in=arguments.results)


if __name__ == "__main__":
    run(main)
