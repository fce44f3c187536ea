"""What each eviction policy of L1 finds of traces and of made-up workloads, beside MIN.

    python -m benchmarks.policies

The quick depth: the tree of L1 alone, one request after another, whole blocks. Sizes are blocks of
512 tokens; of a made-up workload L1 holds a twentieth and a fifth of all its blocks. The default
policy may be no more than 0.3 points below any other one on average, as long as it is one for all.
`reuse` has bars of its own: what it finds of the conversation trace, what it may lose to LRU
anywhere, and the time that it takes.
"""

import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.records.command_line import add_results, make_parser, run
from benchmarks.records.record import Figure, report
from raydix.runtime.cache.page_key import KEY_BYTES, root_key
from raydix.runtime.cache.page_pool import PagePool
from raydix.runtime.cache.radix_node import Segment
from raydix.runtime.cache.radix_tree import RadixTree
from raydix.runtime.cache.reuse_chances import ReuseChances, kind_of
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.foresight.plan.limits import chains_of, min_blocks
from raydix.runtime.foresight.plan.quick import TreeTier
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


def cases() -> Iterator[tuple[str, list[TraceRequest], tuple[int, ...]]]:
    """Each trace, with the sizes at which it is replayed."""
    for name, sizes in SIZES.items():
        yield name, read_trace(TRACES / f"{name}.jsonl.gz"), sizes
    for name, shape in WORKLOADS.items():
        requests = make_trace(shape, SEED)
        num_blocks = len({block for each in requests for block in each.blocks})
        yield name, requests, tuple(int(part * num_blocks) for part in PARTS)


def found_percent(requests: list[TraceRequest], num_blocks: int, policy: EvictionPolicy) -> float:
    """What L1 has of the prompts' tokens."""
    tier = TreeTier(num_blocks, policy)
    num_hits = 0
    for request in requests:
        num_hits += tier.begin(request, request.arrival_s)
        tier.end(request, None, request.arrival_s)
    return 100 * num_hits * BLOCK_TOKENS / sum(each.num_tokens for each in requests)


def measure() -> Iterator[Figure]:
    """Every policy in every case, then what LRU lacks on average of the best other one."""
    sums: dict[EvictionPolicy, float] = defaultdict(float)
    num_cases, lost_by_reuse = 0, 0.0
    for name, requests, sizes in cases():
        num_tokens = sum(request.num_tokens for request in requests)
        chains = chains_of(requests, with_partial=False)
        for num_blocks in sizes:
            num_cases += 1
            row = {}
            for policy in EvictionPolicy:
                row[policy] = found_percent(requests, num_blocks, policy)
                sums[policy] += row[policy]
            lost_by_reuse = max(lost_by_reuse, row[EvictionPolicy.LRU] - row[EvictionPolicy.REUSE])
            best = 100 * BLOCK_TOKENS * sum(min_blocks(chains, num_blocks)) / num_tokens
            text = "  ".join(f"{policy} {value:.2f}" for policy, value in row.items())
            print(f"{name} {num_blocks}: {text}  MIN {best:.2f}", file=sys.stderr, flush=True)
            for policy, value in row.items():
                is_bar = policy is EvictionPolicy.REUSE and name == "conversation"
                yield Figure(
                    name=f"{name}_{num_blocks}_{policy}",
                    value=value,
                    unit="%",
                    min_value=MIN_REUSE.get(num_blocks) if is_bar else None,
                    baseline=best,
                    baseline_name="MIN",
                )
    lost = max(sums.values()) - sums[EvictionPolicy.LRU]
    yield Figure(
        name="lost_by_lru", value=lost / num_cases, unit="points on average", max_value=MAX_LOSS
    )
    yield Figure(
        name="lost_by_reuse", value=lost_by_reuse, unit="points at most", max_value=MAX_LOSS
    )


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


def main() -> int:
    """Returns 1 if a bar is not met."""
    parser = make_parser(__doc__)
    add_results(parser, help="folder for the record", default=None)
    arguments = parser.parse_args()
    config = {"seed": SEED, "depth": "quick"}
    return report("policies", config, [*measure(), *time_reuse()], keep_in=arguments.results)


if __name__ == "__main__":
    run(main)
