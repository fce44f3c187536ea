"""Whether `raydix plan` finds what others measured on the conversation trace, and how fast.

    python -m benchmarks.planning

LRU and MIN of both tiers and FIFO of L1 at 1,000 to 50,000 blocks stand beside those of an
independent model (`PUBLISHED`), LRU and a MIN that may refuse blocks over the second half beside
kvcache-simulator 0.1.3 (`SIMULATOR`), all with last blocks that are not whole. Under FIFO L2 loses
heads of chains before their tails, which that model does not. Then the time of a point, on one
core.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.records.command_line import add_results, make_parser, run
from benchmarks.records.record import Figure, report
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.foresight.plan.limits import bypassed_min_blocks, chains_of
from raydix.runtime.foresight.plan.planning import (
    Plan,
    Question,
    Sizes,
    TierPoint,
    TierSize,
    make_plan,
)
from raydix.runtime.foresight.traces import BLOCK_TOKENS, TraceRequest, read_trace

TRACE = Path(__file__).parent / "traces" / "conversation.jsonl.gz"
PUBLISHED = {
    1_000: (4.54, 4.54, 18.27),
    2_000: (5.54, 5.54, 25.43),
    5_000: (11.40, 11.38, 34.63),
    10_000: (21.57, 21.51, 37.36),
    20_000: (29.35, 29.35, 37.36),
    30_000: (33.22, 33.22, 37.36),
    50_000: (36.15, 36.14, 37.36),
}
"""LRU, FIFO and MIN by blocks, in percent of prompt tokens."""
SIMULATOR = {1_409: (4.89, 23.0), 5_637: (13.15, 37.3), 22_550: (31.66, 39.8)}
"""LRU, and what it calls optimal, over the second half of the requests."""
MAX_ERROR = 0.3
MAX_ERROR_SIMULATOR = 0.1
MAX_ERROR_MIN = 0.5
MAX_POINT_S = 5.0
MANY_REQUESTS = 100_000
MAX_MANY_S = 60.0


def plan_of(
    requests: list[TraceRequest], eviction: EvictionPolicy, blocks: list[int], after: float
) -> Plan:
    """What L1 and L2 find at these sizes, with last blocks that are not whole."""
    question = Question(
        requests=requests,
        block_tokens=BLOCK_TOKENS,
        eviction=eviction,
        count_after=after,
        with_partial=True,
    )
    sizes = [TierSize(num_bytes=each, num_blocks=each) for each in blocks]
    return make_plan(question, Sizes(l1=sizes, l2=sizes, l3=[None]))


def _error(name: str, found: float, expected: float, most: float) -> Figure:
    print(f"{name}: {found:.2f}, expected {expected:.2f}", file=sys.stderr, flush=True)
    return Figure(
        name=f"{name}_error",
        value=abs(found - expected),
        unit="points",
        max_value=most,
        baseline=expected,
        baseline_name="expected, % of prompt tokens",
    )


def _name(what: str, point: TierPoint) -> str:
    return f"{what}_{point.tier.lower()}_{point.num_blocks}"


def measure_published(requests: list[TraceRequest]) -> Iterator[Figure]:
    """Errors against the model and the simulator of others."""
    points = plan_of(requests, EvictionPolicy.FIFO, list(PUBLISHED), 0.0).points
    # The model takes in all blocks, as L1 does; L2 need not.
    least = {point.num_blocks: point.min for point in points if point.tier == "L1"}
    for point in points:
        lru, fifo, best = PUBLISHED[point.num_blocks]
        yield _error(_name("lru", point), point.lru, lru, MAX_ERROR)
        if point.tier == "L1":
            yield _error(_name("fifo", point), point.chosen, fifo, MAX_ERROR)
        yield _error(_name("min", point), least[point.num_blocks], best, MAX_ERROR)
    for point in plan_of(requests, EvictionPolicy.LRU, list(SIMULATOR), 0.5).points:
        lru, _ = SIMULATOR[point.num_blocks]
        yield _error(_name("half_lru", point), point.lru, lru, MAX_ERROR_SIMULATOR)
    chains = chains_of(requests, with_partial=True)
    half = requests[len(requests) // 2 :]
    for num_blocks, (_, best) in SIMULATOR.items():
        counts = bypassed_min_blocks(chains, num_blocks)[len(requests) // 2 :]
        pairs = zip(counts, half, strict=True)
        num_hits = sum(min(count * BLOCK_TOKENS, each.num_tokens) for count, each in pairs)
        found = 100 * num_hits / sum(request.num_tokens for request in half)
        yield _error(f"half_bypassed_min_{num_blocks}", found, best, MAX_ERROR_MIN)


def measure_speed(requests: list[TraceRequest]) -> Iterator[Figure]:
    """CPU seconds of one point of each tier, and of many requests through L1."""
    num_times = -(-MANY_REQUESTS // len(requests))
    many = (requests * num_times)[:MANY_REQUESTS]
    for name, given, tiers, most in (
        ("l1_point", requests, ("l1",), MAX_POINT_S),
        ("l2_point", requests, ("l2",), MAX_POINT_S),
        ("l1_many_requests", many, ("l1",), MAX_MANY_S),
    ):
        size = [TierSize(num_bytes=10_000, num_blocks=10_000)]
        question = Question(requests=given, block_tokens=BLOCK_TOKENS, eviction=EvictionPolicy.LRU)
        before_s = time.process_time()
        make_plan(
            question,
            Sizes(l1=size if "l1" in tiers else [], l2=size if "l2" in tiers else [], l3=[]),
        )
        taken_s = time.process_time() - before_s
        yield Figure(name=f"{name}_s", value=taken_s, unit="s", max_value=most)


def main() -> int:
    """Returns 1 if a bar is not met."""
    parser = make_parser(__doc__)
    add_results(parser, help="folder for the record", default=None)
    arguments = parser.parse_args()
    requests = read_trace(TRACE)
    figures = [*measure_published(requests), *measure_speed(requests)]
    config = {"trace": TRACE.name, "depth": "quick"}
    return report("planning", config, figures, keep_in=arguments.results)


if __name__ == "__main__":
    run(main)
