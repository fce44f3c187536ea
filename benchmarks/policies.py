"""What each eviction policy of L1 finds of traces and of made-up workloads, beside MIN.

    python -m benchmarks.policies

The quick depth: the tree of L1 alone, one request after another, whole blocks. Sizes are blocks of
512 tokens; of a made-up workload L1 holds a twentieth and a fifth of all its blocks. The default
policy may be no more than 0.3 points below any other one on average, as long as it is one for all.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from benchmarks.records.command_line import add_results, make_parser, run
from benchmarks.records.record import Figure, report
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
    num_cases = 0
    for name, requests, sizes in cases():
        num_tokens = sum(request.num_tokens for request in requests)
        chains = chains_of(requests, with_partial=False)
        for num_blocks in sizes:
            num_cases += 1
            row = {}
            for policy in EvictionPolicy:
                row[policy] = found_percent(requests, num_blocks, policy)
                sums[policy] += row[policy]
            best = 100 * BLOCK_TOKENS * sum(min_blocks(chains, num_blocks)) / num_tokens
            text = "  ".join(f"{policy} {value:.2f}" for policy, value in row.items())
            print(f"{name} {num_blocks}: {text}  MIN {best:.2f}", file=sys.stderr, flush=True)
            for policy, value in row.items():
                yield Figure(
                    name=f"{name}_{num_blocks}_{policy}",
                    value=value,
                    unit="%",
                    baseline=best,
                    baseline_name="MIN",
                )
    lost = max(sums.values()) - sums[EvictionPolicy.LRU]
    yield Figure(
        name="lost_by_lru", value=lost / num_cases, unit="points on average", max_value=MAX_LOSS
    )


def main() -> int:
    """Returns 1 if a bar is not met."""
    parser = make_parser(__doc__)
    add_results(parser, help="folder for the record", default=None)
    arguments = parser.parse_args()
    config = {"seed": SEED, "depth": "quick"}
    return report("policies", config, list(measure()), keep_in=arguments.results)


if __name__ == "__main__":
    run(main)
