"""Where requests go: hits and times to the first token of four nodes, by the way they are chosen.

    python -m benchmarks.routing
    python -m benchmarks.routing --dynamo ~/dynamo/bin/python

A virtual clock: each node computes 12,000 tokens of prompts per second, one prompt after the other,
and caches 5,000 blocks of 512 in the production radix tree; pages are there once their prompt is
computed, and decodes (15 ms a token) take nobody's time. All of it, arrivals too, is four times as
fast, so that reports each 0.1 s and keys 0.01 s late come as late as four times that.

The first 3,000 requests of the conversation trace go through production's ingress with each of its
policies, through Ray's PrefixCacheAffinityRouter, and, with a Python that has it, through Dynamo's
SelectionService, which follows the nodes' events. Then: several ingresses that know nothing of each
other, and one that starts after two thirds of the requests; nodes that pull from each other, at the
published times of gpt-oss-120b; the agentic trace, on one node with all the memory, on four, and on
four of which one has a tenth, or a quarter, of the speed. The trace gives arrivals in steps of 3 s,
and ingresses cannot see what others send in the same instant: `spread` draws when they come in it.

Last, the index: bytes for each of 10^7 keys, and lookups of chains of 24 pages in it.
"""

import dataclasses
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from benchmarks.cores.routed_nodes import NodeSpeed
from benchmarks.cores.routed_traffic import Ingresses, Outcome, Router, drive
from benchmarks.records.command_line import add_keep, count, make_parser, positive, run
from benchmarks.records.record import Figure, report
from benchmarks.rivals.dynamo_selection import DynamoSelection
from benchmarks.rivals.ray_affinity import RayAffinity
from raydix.runtime.foresight.plan.limits import infinite_hit_fraction
from raydix.runtime.foresight.simulator.clock import Clock
from raydix.runtime.foresight.traces import BLOCK_TOKENS, TraceRequest, read_trace
from raydix.runtime.messages.line import Line
from raydix.runtime.routing.key_filter import KeyFilter, hashed
from raydix.runtime.routing.policies import RoundRobin, RoutingPolicy, SessionHash, SoonestNode

TRACES = Path(__file__).parent / "traces"
NUM_NODES = 4
NUM_BLOCKS = 5_000
TOKENS_PER_S = 12_000.0
PULL_FIXED_S = 0.026
PULL_TOKENS_PER_S = 235_000.0
"""The line through the published times of pulls: 35 ms for 2,000 tokens, 235 for 49,000."""
ARRIVAL_STEP_S = 3.0
"""The trace's resolution of time."""

MIN_HITS_OF_ROUND_ROBIN = 2.0
MAX_POINTS_UNDER_RAY = 1.5
MIN_POINTS_OVER_DYNAMO = 2.0
MAX_P90_OF = {"round_robin": 0.45, "ray": 0.8, "dynamo": 1.05}
MAX_POINTS_UNDER_ONE_NODE = 2.0
MAX_P90_OF_HASH_SLOW = 0.6
MAX_POINTS_BETWEEN_INGRESSES = 1.0
MAX_COMPUTED_WITH_PULL = 0.85


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How fast everything is, and what the nodes are."""

    speed_up: float
    num_nodes: int = NUM_NODES
    num_blocks: int = NUM_BLOCKS
    first_node: float = 1.0
    """The speed of the first node, as a part of the others'."""
    with_pull: bool = False

    @property
    def pull(self) -> Line | None:
        """The time to fetch pages from another node."""
        if not self.with_pull:
            return None
        page_s = BLOCK_TOKENS / PULL_TOKENS_PER_S
        return Line(PULL_FIXED_S / self.speed_up, page_s / self.speed_up)

    def speeds(self) -> list[NodeSpeed]:
        """The speeds of all nodes."""
        usual = TOKENS_PER_S * self.speed_up
        return [
            NodeSpeed(
                num_blocks=self.num_blocks,
                prefill_tokens_per_s=usual * (1.0 if index else self.first_node),
                start_tokens_per_s=usual,
                pull=self.pull,
            )
            for index in range(self.num_nodes)
        ]


def serve(requests: Sequence[TraceRequest], router: Router, setting: Setting, name: str) -> Outcome:
    """Serve a trace, and tell how that went."""
    outcome = drive(requests, router, setting.speeds(), Clock(), speed_up=setting.speed_up)
    print(
        f"{name}: hits {outcome.hit_percent:.2f} %, first token p50 "
        f"{outcome.first_token_p50_s:.3f} s, p90 {outcome.first_token_p90_s:.3f} s",
        file=sys.stderr,
        flush=True,
    )
    return outcome


def route(
    requests: Sequence[TraceRequest],
    setting: Setting,
    name: str,
    *policies: RoutingPolicy,
    handed_over_at: int | None = None,
) -> Outcome:
    """Serve a trace through one ingress per policy; by default one that chooses by time."""
    router = Ingresses(
        policies or (SoonestNode(),), pull=setting.pull, handed_over_at=handed_over_at
    )
    return serve(requests, router, setting, name)


def of(name: str, outcome: Outcome) -> Iterator[Figure]:
    """What is told of every way."""
    yield Figure(name=f"{name}_hits", value=outcome.hit_percent, unit="%")
    yield Figure(name=f"{name}_first_token_p50", value=outcome.first_token_p50_s, unit="s")
    yield Figure(name=f"{name}_first_token_p90", value=outcome.first_token_p90_s, unit="s")


def ratio(name: str, value: float, other: float, *, at_most: float | None) -> Figure:
    """A ratio with a bar."""
    return Figure(name=name, value=value / other, unit="1", max_value=at_most)


def compare_ways(
    requests: Sequence[TraceRequest], setting: Setting, dynamo: Path | None
) -> Iterator[Figure]:
    """The conversation trace by every way there is to choose."""
    ours = route(requests, setting, "soonest")
    others = {
        "round_robin": route(requests, setting, "round_robin", RoundRobin()),
        "session_hash": route(requests, setting, "session_hash", SessionHash()),
        "ray": serve(requests, RayAffinity(), setting, "ray"),
    }
    if dynamo is not None:
        with ExitStack() as stack:
            router = stack.enter_context(DynamoSelection(dynamo))
            others["dynamo"] = serve(requests, router, setting, "dynamo")
    bound = 100 * infinite_hit_fraction(requests)
    yield Figure(name="infinite_cache_hits", value=bound, unit="%")
    for name, outcome in {"soonest": ours, **others}.items():
        yield from of(name, outcome)

    hits = ours.hit_percent
    yield Figure(
        name="hits_of_round_robin",
        value=hits / others["round_robin"].hit_percent,
        unit="1",
        min_value=MIN_HITS_OF_ROUND_ROBIN,
    )
    yield points("points_under_ray", others["ray"].hit_percent - hits, MAX_POINTS_UNDER_RAY)
    if dynamo is not None:
        yield points(
            "points_under_dynamo", others["dynamo"].hit_percent - hits, -MIN_POINTS_OVER_DYNAMO
        )
    for name, outcome in others.items():
        yield ratio(
            f"p90_of_{name}",
            ours.first_token_p90_s,
            outcome.first_token_p90_s,
            at_most=MAX_P90_OF.get(name),
        )
    yield from compare_ingresses(requests, setting, ours)
    yield from compare_pulls(requests, setting, ours, others["session_hash"], others["round_robin"])


def points(name: str, value: float, at_most: float) -> Figure:
    """A difference of hits with a bar."""
    return Figure(name=name, value=value, unit="points", max_value=at_most)


def compare_ingresses(
    requests: Sequence[TraceRequest], setting: Setting, one: Outcome
) -> Iterator[Figure]:
    """Several ingresses, and one that comes late."""
    late = route(requests, setting, "late", handed_over_at=2 * len(requests) // 3)
    draw = random.Random(3)
    spread = sorted(
        [
            dataclasses.replace(each, arrival_s=each.arrival_s + draw.uniform(0, ARRIVAL_STEP_S))
            for each in requests
        ],
        key=lambda each: each.arrival_s,
    )
    of_one = {"": one, "_spread": route(spread, setting, "spread")}
    yield from of("spread", of_one["_spread"])
    yield points("late_ingress_points", abs(one.hit_percent - late.hit_percent), 1.0)
    for num in (2, 4):
        for suffix, trace in (("", requests), ("_spread", spread)):
            name = f"ingresses_{num}{suffix}"
            several = route(trace, setting, name, *[SoonestNode()] * num)
            base = of_one[suffix]
            yield from of(name, several)
            difference = abs(base.hit_percent - several.hit_percent)
            yield points(f"{name}_points", difference, MAX_POINTS_BETWEEN_INGRESSES)


def compare_pulls(
    requests: Sequence[TraceRequest],
    setting: Setting,
    soonest: Outcome,
    hashed: Outcome,
    robin: Outcome,
) -> Iterator[Figure]:
    """Nodes that pull from each other.

    Routing and a hash of the session send requests to the holder: what these leave to be computed
    hardly any other node has, so the bar on that is one for round robin.
    """
    yield from bound_pulls(requests, setting, soonest, robin)
    pulling = dataclasses.replace(setting, with_pull=True)
    for name, without, policy, bar in (
        ("pull", soonest, SoonestNode(), None),
        ("pull_session_hash", hashed, SessionHash(), None),
        ("pull_round_robin", robin, RoundRobin(), MAX_COMPUTED_WITH_PULL),
    ):
        outcome = route(requests, pulling, name, policy)
        yield from of(name, outcome)
        yield ratio(
            f"{name}_computed",
            outcome.num_computed_tokens,
            without.num_computed_tokens,
            at_most=bar,
        )
        yield ratio(
            f"{name}_p90", outcome.first_token_p90_s, without.first_token_p90_s, at_most=1.0
        )


def bound_pulls(
    requests: Sequence[TraceRequest], setting: Setting, soonest: Outcome, robin: Outcome
) -> Iterator[Figure]:
    """How little pulls could leave to compute, as parts of what this routing computes without.

    First what other nodes had of it, if it came at once and for nothing; then by caches that
    no pull can surpass: one with the memory of all nodes, as quick as all, and an infinite one.
    """
    for name, without in (("elsewhere", soonest), ("elsewhere_round_robin", robin)):
        part = without.num_elsewhere_tokens / without.num_computed_tokens
        yield Figure(name=name, value=part, unit="1")

    fast = dataclasses.replace(setting, speed_up=NUM_NODES * setting.speed_up)
    one = dataclasses.replace(fast, num_nodes=1, num_blocks=NUM_NODES * NUM_BLOCKS)
    router = Ingresses((SoonestNode(),))
    pooled = drive(requests, router, one.speeds(), Clock(), speed_up=setting.speed_up)
    yield Figure(name="one_cache_hits", value=pooled.hit_percent, unit="%")
    computed = soonest.num_computed_tokens
    yield Figure(name="one_cache_computed", value=pooled.num_computed_tokens / computed, unit="1")
    num_new = (1 - infinite_hit_fraction(requests)) * sum(each.num_tokens for each in requests)
    yield Figure(name="infinite_cache_computed", value=num_new / computed, unit="1")


def compare_agents(requests: Sequence[TraceRequest], setting: Setting) -> Iterator[Figure]:
    """Agents on nodes that are alike, and with one that is slow."""
    one = dataclasses.replace(setting, num_nodes=1, num_blocks=NUM_NODES * NUM_BLOCKS)
    single = route(requests, one, "agents_one_node")
    four = route(requests, setting, "agents")
    yield from of("agents_one_node", single)
    yield from of("agents", four)
    under = single.hit_percent - four.hit_percent
    yield points("agents_points_under_one_node", under, MAX_POINTS_UNDER_ONE_NODE)

    for name, speed, bar in (("tenth", 0.1, MAX_P90_OF_HASH_SLOW), ("quarter", 0.25, None)):
        slow = dataclasses.replace(setting, first_node=speed)
        ours = route(requests, slow, f"agents_slow_{name}")
        hashed = route(requests, slow, f"agents_slow_{name}_hash", SessionHash())
        yield from of(f"agents_slow_{name}", ours)
        yield from of(f"agents_slow_{name}_hash", hashed)
        yield ratio(
            f"agents_slow_{name}_p90_of_hash",
            ours.first_token_p90_s,
            hashed.first_token_p90_s,
            at_most=bar,
        )


def time_index(num_keys: int) -> Iterator[Figure]:
    """An index of random keys."""
    keys = np.random.default_rng(1).integers(0, 2**64, num_keys, dtype=np.uint64)
    index = KeyFilter(num_keys)
    start_s = time.process_time()
    for part in np.array_split(keys, max(1, num_keys // 65_536)):
        index.add(part)
    rate = num_keys / (time.process_time() - start_s)
    yield Figure(name="index_bytes_per_key", value=index.num_bytes / num_keys, unit="bytes")
    yield Figure(name="index_keys_added", value=rate, unit="keys/s")

    chains = keys[: 24 * (min(num_keys, 240_000) // 24)].reshape(-1, 24)
    start_s = time.process_time()
    for chain in chains:
        index.has(hashed(chain))
    rate = len(chains) / (time.process_time() - start_s)
    yield Figure(name="index_chains_looked_up", value=rate, unit="chains/s")


def main() -> int:
    """Returns 1 if a bar is not met."""
    parser = make_parser(__doc__)
    parser.add_argument("--conversation", type=Path, default=TRACES / "conversation.jsonl.gz")
    parser.add_argument("--agentic", type=Path, default=TRACES / "agentic.jsonl.gz")
    parser.add_argument("--requests", type=count, default=3_000, help="of the conversation trace")
    parser.add_argument("--agent-requests", type=count, default=10_000, help="of the agentic trace")
    parser.add_argument("--index-keys", type=count, default=10_000_000, help="keys in the index")
    parser.add_argument("--speed-up", type=positive, default=4.0, help="how fast everything is")
    parser.add_argument("--dynamo", type=Path, help="a Python that has ai-dynamo-runtime")
    add_keep(parser)
    arguments = parser.parse_args()

    setting = Setting(speed_up=arguments.speed_up)
    requests = read_trace(arguments.conversation)[: arguments.requests]
    figures = [*compare_ways(requests, setting, arguments.dynamo)]
    figures += compare_agents(read_trace(arguments.agentic)[: arguments.agent_requests], setting)
    figures += time_index(arguments.index_keys)
    config = {
        "nodes": NUM_NODES,
        "blocks": NUM_BLOCKS,
        "prefill_tokens_per_s": TOKENS_PER_S,
        "speed_up": arguments.speed_up,
        "requests": len(requests),
        "with_dynamo": arguments.dynamo is not None,
    }
    return report("routing", config, figures, keep_in=arguments.keep)


if __name__ == "__main__":
    run(main)
