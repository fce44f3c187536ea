"""What a service gains by computing prompts apart, simulated: two GPUs, three ways, two workloads.

    python -m benchmarks.simulated_roles                  # some minutes
    python -m benchmarks.simulated_roles --requests 2000

There are two engines that are equal, one for prefill and one that decodes on one node, which share
its L2, and the same on two nodes, where pages are pulled. Each is an H200 with a model of 16
layers, by its profile. They serve the first requests of the conversation trace as it comes, and
prompts of 16,384 tokens that arrive at random at half of what two equal engines can do, as
`benchmarks.roles` has them.
"""

import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarks.records.command_line import add_results, count, make_parser, run
from benchmarks.records.record import Figure, report
from benchmarks.simulator import PROFILE, TRACE, service_of
from raydix.runtime.config.policies import EngineRole
from raydix.runtime.foresight.simulator.profile import read_profile
from raydix.runtime.foresight.simulator.requests import ClientRequest, requests_of
from raydix.runtime.foresight.simulator.simulation import Outcome, Service, Simulation
from raydix.runtime.foresight.traces import BLOCK_TOKENS, read_trace

PROMPT_TOKENS, ANSWER_TOKENS = 16_384, 256
LOAD = 0.5
EQUALS = "two equal engines"


def services() -> dict[str, Service]:
    """The ways to use two GPUs."""
    one, two = (
        replace(service_of(num_nodes=nodes, num_lanes=1), has_storage=False) for nodes in (1, 2)
    )
    roles = (EngineRole.PREFILL, EngineRole.DECODE)
    pulling = replace(two, node=replace(two.node, with_pulls=True))
    return {
        EQUALS: pulling,
        "apart, one L2": replace(one, node=replace(one.node, roles=roles)),
        "apart, pulls": replace(pulling, num_prefill=1),
    }


def figures_of(name: str, outcome: Outcome, equals: Outcome) -> Iterator[Figure]:
    """What one way has taken, beside two equal engines."""
    for label, value, other, unit in (
        ("gap_p99", 1e3 * outcome.gap_s["p99"], 1e3 * equals.gap_s["p99"], "ms"),
        ("ttft_p50", 1e3 * outcome.first_token_s["p50"], 1e3 * equals.first_token_s["p50"], "ms"),
        ("throughput", outcome.tokens_per_s, equals.tokens_per_s, "tokens/s"),
    ):
        yield Figure(
            name=f"{name}: {label}", value=value, unit=unit, baseline=other, baseline_name=EQUALS
        )
    split = outcome.num_handed_over / outcome.num_requests
    yield Figure(name=f"{name}: split", value=split, unit="1")


def measure(workload: str, requests: Sequence[ClientRequest]) -> Iterator[Figure]:
    """Serve the same requests each way."""
    outcomes: dict[str, Outcome] = {}
    for name, service in services().items():
        outcomes[name] = outcome = simulate(service, requests)
        print(workload, name, outcome.figures(), file=sys.stderr, flush=True)
        yield from figures_of(f"{workload}, {name}", outcome, outcomes[EQUALS])


def simulate(service: Service, requests: Sequence[ClientRequest]) -> Outcome:
    """What comes of requests, with every token simulated."""
    return Simulation(service, read_profile(PROFILE), requests).run()


def long_prompts(num_requests: int) -> list[ClientRequest]:
    """Prompts that share nothing, at half of what two equal engines can do."""
    num_blocks = PROMPT_TOKENS // BLOCK_TOKENS
    at_once = [
        ClientRequest(
            blocks=tuple(range(number * num_blocks, (number + 1) * num_blocks)),
            block_tokens=BLOCK_TOKENS,
            num_prompt_tokens=PROMPT_TOKENS,
            num_answer_tokens=ANSWER_TOKENS,
            session=str(number),
            arrival_s=0.0,
        )
        for number in range(num_requests)
    ]
    most = simulate(services()[EQUALS], at_once[: num_requests // 2])
    gap_s = most.duration_s / (num_requests // 2) / LOAD
    draw, at_s, made = random.Random(0), 0.0, []
    for request in at_once:
        made.append(replace(request, arrival_s=at_s))
        at_s += draw.expovariate(1.0) * gap_s
    return made


def main() -> int:
    """Measure and report."""
    parser = make_parser(__doc__)
    parser.add_argument("--requests", type=count, default=80, help="the first ones of the trace")
    add_results(parser, help="folder for the record", default=None)
    arguments = parser.parse_args()
    trace = read_trace(TRACE)[: arguments.requests]
    figures = [
        *measure("conversation", requests_of(trace, BLOCK_TOKENS, is_closed_loop=False)),
        *measure("16k prompts", long_prompts(arguments.requests)),
    ]
    config = {"requests": arguments.requests}
    return report("simulated_roles", config, figures, keep_in=arguments.results)


if __name__ == "__main__":
    run(main)
