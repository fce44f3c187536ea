"""Whether hints, and the policy without any, are worth as much on traces that nobody tuned for.

    python -m benchmarks.retention_held_out

Made-up agents: three of the shipped trace's shape with other seeds, and shapes that it lacks, with
sub-agents, long pauses, chats and little that is shared. Each goes through HostMemory's core with
room for 1,000 and 2,000 blocks, as in `benchmarks.retention`. With all hints L2 may be as far from
MIN as on the shipped trace and two points more; without any it is nowhere more than 0.3 points
below LRU, though two of its constants were chosen on the shipped trace.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.cores.tier_replay import Hints, hit_fraction
from benchmarks.records.command_line import add_results, make_parser, run
from benchmarks.records.record import Figure, report
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.foresight.plan.limits import hit_fractions
from raydix.runtime.foresight.plan.quick import HostTier
from raydix.runtime.foresight.traces import TraceRequest, read_trace
from raydix.runtime.foresight.workloads import Shape, make_trace

SHIPPED = Path(__file__).parent / "traces" / "agentic.jsonl.gz"
NUM_BLOCKS = (1_000, 2_000)
MAX_MORE_LOST = 2.0
MAX_LOSS = 0.3

AGENTS = Shape()
SHAPES = {
    "agents_1": (AGENTS, 1),
    "agents_2": (AGENTS, 2),
    "agents_3": (AGENTS, 3),
    "sub_agents": (Shape(num_sessions=24, start_gap_s=30.0, child_fraction=0.15), 4),
    "long_pauses": (Shape(pause_s=20.0, pause_spread=1.2, num_sessions=40), 5),
    "chats": (
        Shape(
            num_sessions=400,
            start_gap_s=2.0,
            common_tokens=1_000,
            repository_tokens=0,
            own_tokens=4_000,
            turn_tokens=600.0,
            pause_s=40.0,
            pause_spread=1.0,
            mean_turns=4.0,
        ),
        6,
    ),
    "little_shared": (
        Shape(common_tokens=4_000, repository_tokens=2_000, own_tokens=30_000, num_sessions=40),
        7,
    ),
}
"""The shape and the seed of each held-out trace."""


def measure(name: str, requests: list[TraceRequest], num_blocks: int) -> dict[str, float]:
    """Hit ratios in percent of prompt tokens: of LRU and MIN, without hints, and with all."""
    limits = hit_fractions(requests, num_blocks)
    found = {
        "lru": limits["lru"],
        "min": limits["min"],
        "no_hint": hit_fraction(requests, _tier(num_blocks), None, with_durations=True),
        "all": hit_fraction(requests, _tier(num_blocks), Hints(), with_durations=False),
    }
    percent = {key: 100 * value for key, value in found.items()}
    print(f"{name}_{num_blocks}: {percent}", file=sys.stderr, flush=True)
    return percent


def _tier(num_blocks: int) -> HostTier:
    return HostTier(num_blocks, EvictionPolicy.LRU)


def figures_of(
    name: str, num_blocks: int, found: dict[str, float], lost_on_shipped: float | None
) -> Iterator[Figure]:
    """The figures of one trace and capacity, with bars on those that are held out."""
    is_held_out = lost_on_shipped is not None
    prefix = f"{name}_{num_blocks}"
    yield Figure(name=f"{prefix}_lru", value=found["lru"], unit="%")
    yield Figure(name=f"{prefix}_min", value=found["min"], unit="%")
    yield Figure(name=f"{prefix}_all", value=found["all"], unit="%")
    yield Figure(
        name=f"{prefix}_no_hint_gain",
        value=found["no_hint"] - found["lru"],
        unit="points over LRU",
        min_value=-MAX_LOSS if is_held_out else None,
    )
    yield Figure(
        name=f"{prefix}_lost",
        value=found["min"] - found["all"],
        unit="points below MIN",
        max_value=None if lost_on_shipped is None else lost_on_shipped + MAX_MORE_LOST,
    )


def main() -> int:
    """Returns 1 if a bar is not met."""
    parser = make_parser(__doc__)
    parser.add_argument("--only", choices=[*SHAPES], nargs="*", default=[*SHAPES])
    add_results(parser, help="folder for the record", default=None)
    arguments = parser.parse_args()

    figures: list[Figure] = []
    shipped = read_trace(SHIPPED)
    for num_blocks in NUM_BLOCKS:
        of_shipped = measure("shipped", shipped, num_blocks)
        figures += figures_of("shipped", num_blocks, of_shipped, None)
        lost = of_shipped["min"] - of_shipped["all"]
        for name in arguments.only:
            found = measure(name, make_trace(*SHAPES[name]), num_blocks)
            figures += figures_of(name, num_blocks, found, lost)
    config = {"traces": arguments.only, "num_blocks": NUM_BLOCKS}
    return report("retention_held_out", config, figures, keep_in=arguments.results)


if __name__ == "__main__":
    run(main)
