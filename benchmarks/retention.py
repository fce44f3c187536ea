"""What hints are worth: hit ratios of L2 and L1 on traces, with and without what clients know.

    python -m benchmarks.retention
    python -m benchmarks.retention --agentic other_agents.jsonl.gz

Replays the conversation trace through HostMemory's core with room for 10,000 blocks of 512 tokens,
the agentic one with 1,000 and 2,000, and both through the tree of L1, whose pages nothing locks.
Beside them stand an LRU and Belady's MIN, as the traces' table has them, and an infinite cache.

With hints requests take no time, as in that table: a client says with each request when its session
goes on, or that it has ended. `wrong`: one hint in ten says the opposite (one in twenty of the
conversation trace); `late`: three pauses in ten last twice as long as was said. `served` is the
same with answers that take their time, and hints once they have ended: what is read then is not
known to come back soon. Without hints all requests take their time, since a policy that is told
when they end makes use of it.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.cores.tier_replay import Hints, hit_fraction
from benchmarks.records.command_line import add_results, make_parser, run
from benchmarks.records.record import Figure, report
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.foresight.plan.limits import hit_fractions, infinite_hit_fraction
from raydix.runtime.foresight.plan.quick import HostTier, Tier, TreeTier
from raydix.runtime.foresight.traces import TraceRequest, read_trace

TRACES = Path(__file__).parent / "traces"
CONVERSATION_BLOCKS = 10_000
AGENTIC_BLOCKS = (1_000, 2_000)

MIN_CONVERSATION = {"end": 34.0, "end_wrong": 32.0}
MIN_AGENTIC = {
    1_000: {"all": 76.0, "wrong": 73.0, "late": 73.0},
    2_000: {"all": 91.0, "wrong": 89.5, "late": 89.5},
}
MIN_GAIN_AGENTIC = 1.0
MAX_LOSS_CONVERSATION = 0.3

ENDS = Hints(with_pauses=False)
CONVERSATION_HINTS = {"end": ENDS, "end_wrong": Hints(with_pauses=False, wrong_fraction=0.05)}
AGENTIC_HINTS = {
    "end": ENDS,
    "all": Hints(),
    "wrong": Hints(wrong_fraction=0.1),
    "late": Hints(late_fraction=0.3),
}


def measure(
    name: str,
    requests: list[TraceRequest],
    num_blocks: int,
    *,
    hints: dict[str, Hints],
    bars: dict[str, float],
    min_gain: float,
    eviction: EvictionPolicy,
) -> Iterator[Figure]:
    """All hit ratios of one trace and capacity, in percent of prompt tokens."""
    limits = {key: 100 * value for key, value in hit_fractions(requests, num_blocks).items()}
    limits["infinite"] = 100 * infinite_hit_fraction(requests)
    prefix = f"{name}_{num_blocks}"
    for key, value in limits.items():
        yield Figure(name=f"{prefix}_{key}", value=value, unit="%")

    def figure(
        what: str, tier: Tier, given: Hints | None, bar: float | None, *, is_served: bool
    ) -> Figure:
        value = 100 * hit_fraction(requests, tier, given, with_durations=is_served)
        print(f"{prefix}_{what}: {value:.2f} %", file=sys.stderr, flush=True)
        return Figure(
            name=f"{prefix}_{what}",
            value=value,
            unit="%",
            min_value=bar,
            baseline=limits["lru"],
            baseline_name="LRU of the traces' table",
        )

    tier = HostTier(num_blocks, eviction)
    yield figure("l2_no_hint", tier, None, limits["lru"] + min_gain, is_served=True)
    tree = TreeTier(num_blocks, eviction)
    yield figure("l1_no_hint", tree, None, None, is_served=False)
    for key, given in hints.items():
        tier = HostTier(num_blocks, eviction)
        yield figure(f"l2_{key}", tier, given, bars.get(key), is_served=False)
        tree = TreeTier(num_blocks, eviction)
        yield figure(f"l1_{key}", tree, given, bars.get(key), is_served=False)
        tier = HostTier(num_blocks, eviction)
        yield figure(f"l2_{key}_served", tier, given, None, is_served=True)


def main() -> int:
    """Returns 1 if a bar is not met."""
    parser = make_parser(__doc__)
    parser.add_argument("--conversation", type=Path, default=TRACES / "conversation.jsonl.gz")
    parser.add_argument("--agentic", type=Path, default=TRACES / "agentic.jsonl.gz")
    parser.add_argument(
        "--eviction",
        type=EvictionPolicy,
        choices=list(EvictionPolicy),
        default=EvictionPolicy.LRU,
        help="the policy of the tiers",
    )
    add_results(parser, help="folder for the record", default=None)
    arguments = parser.parse_args()

    figures: list[Figure] = []
    agents = read_trace(arguments.agentic)
    for num_blocks in AGENTIC_BLOCKS:
        figures += measure(
            "agentic",
            agents,
            num_blocks,
            hints=AGENTIC_HINTS,
            bars=MIN_AGENTIC[num_blocks],
            min_gain=MIN_GAIN_AGENTIC,
            eviction=arguments.eviction,
        )
    figures += measure(
        "conversation",
        read_trace(arguments.conversation),
        CONVERSATION_BLOCKS,
        hints=CONVERSATION_HINTS,
        bars=MIN_CONVERSATION,
        min_gain=-MAX_LOSS_CONVERSATION,
        eviction=arguments.eviction,
    )
    config = {
        "agentic": arguments.agentic.name,
        "conversation": arguments.conversation.name,
        "eviction": str(arguments.eviction),
    }
    return report("retention", config, figures, keep_in=arguments.results)


if __name__ == "__main__":
    run(main)
