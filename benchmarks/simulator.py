"""What the simulator takes, on one core: the conversation trace on four nodes, and much more.

    python -m benchmarks.simulator
    python -m benchmarks.simulator --large   # 1,000 ranks on 125 nodes, 100,000 requests: two hours

Each node has a rank with 1,000 blocks of 512 tokens in L1 and 4,000 in L2, and all share an L3 with
40,000; times are those of one H200 with a model of 16 layers. One token is simulated for eight of
each answer. How far that is from one for one, some first requests tell, both ways.

`--large` gives each of 125 nodes eight ranks, sends nine traces at once, whose blocks differ,
eight times as fast, and has all cores prove their invariants now and then, and at the end.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.model.model_shapes import make_layout
from benchmarks.records.command_line import add_results, count, make_parser, run
from benchmarks.records.record import Figure, report
from raydix.runtime.cache.host.settings import HostSettings
from raydix.runtime.foresight.simulator.node import NodeSettings
from raydix.runtime.foresight.simulator.profile import read_profile
from raydix.runtime.foresight.simulator.requests import ClientRequest, requests_of
from raydix.runtime.foresight.simulator.simulation import Outcome, Service, Simulation
from raydix.runtime.foresight.simulator.world import Rules
from raydix.runtime.foresight.traces import BLOCK_TOKENS, TraceRequest, read_trace
from raydix.runtime.garbage import spare_long_lived_objects
from raydix.runtime.scheduler.settings import SchedulerSettings

TRACE = Path(__file__).parent / "traces" / "conversation.jsonl.gz"
PROFILE = Path(__file__).parents[1] / "configs" / "profiles" / "h200-dense-l16.json"
LAYOUT = make_layout(BLOCK_TOKENS, num_layers=16, num_kv_heads=8, head_dim=128, dtype_bytes=2)
BLOCK_BYTES = LAYOUT.host_page_bytes(0)
L1_BLOCKS, L2_BLOCKS, L3_BLOCKS = 1_000, 4_000, 40_000
TOKENS_PER_SIMULATED = 8
MAX_CPU_S = 180.0
MAX_POINTS = 0.5
LARGE_NODES, LARGE_LANES, LARGE_REQUESTS, LARGE_SPEED_UP = 125, 8, 100_000, 8.0
CHECK_INTERVAL = 10_000


def service_of(num_nodes: int, num_lanes: int) -> Service:
    """Nodes that are alike."""
    scheduler = SchedulerSettings(
        layout=LAYOUT,
        num_lanes=num_lanes,
        num_pages=(L1_BLOCKS,),
        max_model_len=131_072,
        vocab_size=32_000,
        prefill_budget_tokens=8192,
        max_waiting_requests=LARGE_REQUESTS,
        launch_s=0.005,
        start_prefill_tokens_per_s=200e3,
        start_prefill_s=0.005,
        start_load_bytes_per_s=50e9,
    )
    node = NodeSettings(
        scheduler=scheduler,
        host=HostSettings(page_size=BLOCK_TOKENS),
        arena_bytes=num_lanes * L2_BLOCKS * BLOCK_BYTES,
    )
    return Service(
        node=node,
        num_nodes=num_nodes,
        has_storage=True,
        max_storage_bytes=num_nodes * num_lanes * (L3_BLOCKS // 4) * BLOCK_BYTES,
    )


def simulate(
    requests: Sequence[ClientRequest], service: Service, rules: Rules, name: str
) -> tuple[Outcome, float]:
    """What came of it, and the CPU seconds that it took."""
    began_s = time.process_time()
    simulation = Simulation(service, read_profile(PROFILE), requests, rules)
    # As `raydix simulate` does.
    spare_long_lived_objects()
    outcome = simulation.run()
    cpu_s = time.process_time() - began_s
    ttft_s = outcome.first_token_s
    print(
        f"{name}: {outcome.num_requests} requests, {outcome.num_events} events in {cpu_s:.1f} s; "
        f"hits {outcome.hit_fraction:.2%}, first token p50 {ttft_s['p50']:.3f} s, "
        f"p90 {ttft_s['p90']:.3f} s",
        file=sys.stderr,
        flush=True,
    )
    return outcome, cpu_s


def measure(trace: Sequence[TraceRequest], num_compared: int) -> Iterator[Figure]:
    """The whole trace, and its first requests both ways."""
    service = service_of(num_nodes=4, num_lanes=1)
    requests = requests_of(trace, BLOCK_TOKENS, is_closed_loop=False)
    eighth, each = Rules(tokens_per_simulated=TOKENS_PER_SIMULATED), Rules()
    outcome, cpu_s = simulate(requests, service, eighth, "all")
    yield Figure(name="cpu", value=cpu_s, unit="s", max_value=MAX_CPU_S)
    yield Figure(name="events", value=outcome.num_events / cpu_s, unit="events/s")
    yield Figure(name="hits", value=100 * outcome.hit_fraction, unit="%")

    some = requests[:num_compared]
    exact, exact_s = simulate(some, service, each, "one for one")
    quick, quick_s = simulate(some, service, eighth, "one for eight")
    points = 100 * abs(exact.hit_fraction - quick.hit_fraction)
    yield Figure(name="points_of_one_for_eight", value=points, unit="points", max_value=MAX_POINTS)
    yield Figure(name="speed_of_one_for_eight", value=exact_s / quick_s, unit="1")
    for name in ("p50", "p90"):
        ratio = quick.first_token_s[name] / exact.first_token_s[name]
        yield Figure(name=f"first_token_{name}_of_one_for_eight", value=ratio, unit="1")


def large_requests(trace: Sequence[TraceRequest]) -> list[ClientRequest]:
    """Several traces at once, which share nothing."""
    usual = requests_of(trace, BLOCK_TOKENS, is_closed_loop=False)
    num_blocks = 1 + max(max(request.blocks, default=0) for request in usual)
    made = [
        replace(
            request,
            blocks=tuple(block + copy * num_blocks for block in request.blocks),
            session=f"{copy}:{request.session}",
            arrival_s=request.arrival_s / LARGE_SPEED_UP,
        )
        for copy in range(-(-LARGE_REQUESTS // len(usual)))
        for request in usual
    ]
    made.sort(key=lambda request: request.arrival_s)
    return made[:LARGE_REQUESTS]


def measure_large(
    trace: Sequence[TraceRequest], num_nodes: int, num_requests: int
) -> Iterator[Figure]:
    """Many ranks; raises AccountingError if an invariant does not hold."""
    service = service_of(num_nodes=num_nodes, num_lanes=LARGE_LANES)
    rules = Rules(tokens_per_simulated=TOKENS_PER_SIMULATED, check_interval=CHECK_INTERVAL)
    requests = large_requests(trace)[:num_requests]
    outcome, cpu_s = simulate(requests, service, rules, "large")
    num_answered = outcome.num_requests - sum(outcome.failures.values())
    yield Figure(name="large_cpu", value=cpu_s, unit="s")
    yield Figure(
        name="large_answered", value=num_answered, unit="requests", min_value=len(requests)
    )
    yield Figure(name="large_hits", value=100 * outcome.hit_fraction, unit="%")


def main() -> int:
    """Returns 1 if a bar is not met."""
    parser = make_parser(__doc__)
    parser.add_argument("--large", action="store_true", help="many nodes instead of four")
    parser.add_argument("--nodes", type=count, default=LARGE_NODES, help="of --large")
    parser.add_argument("--requests", type=count, default=LARGE_REQUESTS, help="the first ones")
    parser.add_argument("--compared", type=count, default=3_000, help="simulated both ways")
    add_results(parser, help="folder for the record")
    arguments = parser.parse_args()

    trace = read_trace(TRACE)
    if arguments.large:
        figures = [*measure_large(trace, arguments.nodes, arguments.requests)]
        return report(
            "simulator_large", {"nodes": arguments.nodes}, figures, keep_in=arguments.results
        )
    figures = [*measure(trace[: arguments.requests], arguments.compared)]
    config = {"nodes": 4, "tokens_per_simulated": TOKENS_PER_SIMULATED}
    return report("simulator", config, figures, keep_in=arguments.results)


if __name__ == "__main__":
    run(main)
