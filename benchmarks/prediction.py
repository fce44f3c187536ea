"""What `raydix simulate` predicts, beside what an engine does: hits of every tier, point by point.

    python -m benchmarks.prediction                        # one point after the other
    python -m benchmarks.prediction --processes 12         # on a machine with cores to spare
    python -m benchmarks.prediction --only agentic:2.8:write_back:l3
    python -m benchmarks.prediction --nodes 4              # the points of four nodes alone
    python -m benchmarks.prediction --device cuda          # times, too: benchmarks.prediction_gpu

The engine is a whole one in one process: real actors, links, arena and copies around a model that
only sleeps. Each block of a trace is a page of 64 tokens. L1 is so small that what all requests
need is 0.7, 1.4, 2.8 and 5.6 times as large, L2 has one and a half times as many pages, and every
write policy is tried, without L3 and with one that keeps everything. Requests go through a few
streams, in each of which the next one follows the last answer, there and here.

Then four such engines at once, with a quarter of L1 and of L2 each and four times as many streams,
behind production's router, which sends each request where its answer is expected soonest. They have
no L3.

The simulator is told the sleep of a step, and nothing that the engine has found.
"""

import argparse
import asyncio
import itertools
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.device.gpus import require_gpus
from benchmarks.engine.engines import Answer, Options, ask, engine_sections
from benchmarks.engine.sleeping_model import PAGE_TOKENS, build_model
from benchmarks.model.model_shapes import make_layout
from benchmarks.prediction_gpu import compare_times
from benchmarks.records.command_line import add_commit, add_results, count, make_parser, run
from benchmarks.records.record import Figure, report
from raydix.runtime.actors.bootstrap.device_needs import DeviceNeeds
from raydix.runtime.actors.bootstrap.engine_sizes import EngineSizes
from raydix.runtime.actors.links.socket_dialer import connect
from raydix.runtime.api.engine_client import EngineClient
from raydix.runtime.api.line_router import LineRouter
from raydix.runtime.api.model_limits import ModelLimits
from raydix.runtime.api.request_options import RequestOptions
from raydix.runtime.api.routing_figures import RoutingFigures
from raydix.runtime.cli.simulated_service import service_of
from raydix.runtime.cli.source_table import by_tier
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config
from raydix.runtime.foresight.simulator.profile import CopyTimes, Profile, StepTimes
from raydix.runtime.foresight.simulator.requests import ClientRequest, requests_of
from raydix.runtime.foresight.simulator.simulation import Simulation
from raydix.runtime.foresight.traces import read_trace
from raydix.runtime.messages.hello import Hello, Role
from raydix.runtime.routing.policies import SoonestNode
from raydix.runtime.testing.engine import InProcessEngine, in_process_engine
from raydix.runtime.testing.sleeping_runner import VOCAB_SIZE

TRACES = Path(__file__).parent / "traces"
LAYOUT = make_layout(PAGE_TOKENS, num_layers=4, num_kv_heads=1, head_dim=8)
TIMES_L1 = (0.7, 1.4, 2.8, 5.6)
POLICIES = ("write_through", "write_through_selective", "write_back")
L2_OF_L1 = 1.5
MAX_POINTS = 2.0
STEP_S = 0.004
NUM_STREAMS = 4
"""The requests that are open at the same time, for each node."""
NUM_NODES = 4
TIMES_L1_OF_NODES = (1.4, 5.6)
TOKEN_S_OF_NODES = 5e-5
"""What each token of a prompt adds to a step where there is a choice of nodes: without that no node
would answer sooner for what it has cached.
"""
ANSWER_TOKENS = 4
MAX_BLOCKS = 96
"""Longer prompts end there: several have to fit into the smallest L1."""
SKIPPED_BLOCKS = {"conversation": 0, "agentic": 90}
"""The leading blocks that are left out, as nearly all prompts have them."""
MAX_TOKENS = PAGE_TOKENS * (MAX_BLOCKS + 1)
TRACE_NAMES = ("conversation", "agentic")
TIERS = ("l1", "l2", "l3", "computed")
PROFILE = Profile(
    name="sleeping",
    step=StepTimes(fixed_s=STEP_S, prompt_token_s=0.0),
    load=CopyTimes(fixed_s=1e-3, bytes_per_s=1e9),
    backup=CopyTimes(fixed_s=1e-3, bytes_per_s=1e9),
    storage_read=CopyTimes(fixed_s=2e-3, bytes_per_s=1e9),
    storage_write=CopyTimes(fixed_s=2e-3, bytes_per_s=1e9),
    link_s=5e-4,
    client_s=1e-3,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """An engine and a trace."""

    trace: str
    times_l1: float
    policy: str
    has_l3: bool
    num_requests: int
    num_nodes: int = 1

    @property
    def token_s(self) -> float:
        """What each token of a prompt adds to a step."""
        return TOKEN_S_OF_NODES if self.num_nodes > 1 else 0.0

    @property
    def num_streams(self) -> int:
        """How many requests are open at the same time."""
        return NUM_STREAMS * self.num_nodes

    @property
    def name(self) -> str:
        """Its name in the record, and of `--only`."""
        tail = ":l3" if self.has_l3 else ""
        tail += f":{self.num_nodes}_nodes" if self.num_nodes > 1 else ""
        return f"{self.trace}:{self.times_l1:g}:{self.policy}{tail}"

    def requests(self) -> list[ClientRequest]:
        """The trace's requests, in streams."""
        trace = read_trace(TRACES / f"{self.trace}.jsonl.gz")
        skipped = SKIPPED_BLOCKS[self.trace]
        long = [
            (request, request.blocks[skipped : skipped + MAX_BLOCKS])
            for request in requests_of(trace, 512, is_closed_loop=False)
            if len(request.blocks) > skipped
        ]
        return [
            replace(
                request,
                block_tokens=PAGE_TOKENS,
                blocks=blocks,
                num_prompt_tokens=PAGE_TOKENS * len(blocks),
                num_answer_tokens=ANSWER_TOKENS,
                arrival_s=0.0,
                pause_s=0.0,
                follows=index - self.num_streams if index >= self.num_streams else None,
            )
            for index, (request, blocks) in enumerate(long[: self.num_requests])
        ]

    def num_pages(self, requests: Sequence[ClientRequest]) -> int:
        """The pages of L1 on each node."""
        needed = len({block for request in requests for block in request.blocks})
        share = needed / self.times_l1 / self.num_nodes
        return max(round(share), NUM_STREAMS * (MAX_BLOCKS + 2))

    def config(self, num_pages: int) -> EngineConfig:
        """The engine's configuration."""
        page_bytes = LAYOUT.host_page_bytes(0)
        sections = engine_sections(
            max_model_len=MAX_TOKENS,
            page_size=PAGE_TOKENS,
            l1_pages=num_pages,
            l2_bytes=round(L2_OF_L1 * num_pages) * page_bytes,
            chunk_tokens=8192,
        )
        cache: dict[str, Any] = {
            "write_policy": self.policy,
            # Of everything that a tier has.
            "load": "always",
            "prefetch": {"strategy": "wait_complete", "cap": "none"},
        }
        if self.has_l3:
            cache["l3"] = {"backend": "fake", "max_bytes": 1 << 40, "latency_s": 0.001}
        return load_config({"model": {"path": "none"}, "cache": cache}, sections)


def predict(point: Point) -> dict[str, int]:
    """Prompt tokens by tier, as simulated."""
    requests = point.requests()
    num_pages = point.num_pages(requests)
    config = point.config(num_pages)
    assert config.cache.l2 is not None
    sizes = EngineSizes(
        layout=LAYOUT,
        needs=DeviceNeeds(weight_bytes=0),
        num_pages=(num_pages,),
        l1_bytes=None,
        max_model_len=MAX_TOKENS,
        arena_bytes=config.cache.l2.bytes_per_node,
        expert_store_bytes=0,
    )
    service = service_of(config, sizes, VOCAB_SIZE, num_nodes=point.num_nodes)
    step = StepTimes(fixed_s=STEP_S, prompt_token_s=point.token_s)
    profile = PROFILE.model_copy(update={"step": step})
    return Simulation(service, profile, requests).run().prompt_tokens


@asynccontextmanager
async def routed(engines: Mapping[str, InProcessEngine]) -> AsyncIterator[EngineClient]:
    """A client that sends requests to whichever engine answers soonest."""
    limits = ModelLimits.of(next(iter(engines.values())).facts.client)
    router = LineRouter(SoonestNode(), RoutingFigures([*engines]))
    client = EngineClient(limits, None, lambda name: None, router)
    try:
        for name, engine in engines.items():
            hello = Hello(role=Role.CLIENT, name="router", incarnation=0, pid=os.getpid())
            record = engine.facts.record
            client.use(name, await connect(record.client_address, hello, record.secret))
        yield client
    finally:
        await client.close()


async def serve(point: Point) -> dict[str, int]:
    """Prompt tokens by tier, as the engines have found them."""
    requests = point.requests()
    build: Any = partial(build_model, layout=LAYOUT, step_s=STEP_S, token_s=point.token_s)
    config = point.config(point.num_pages(requests))
    async with AsyncExitStack() as stack:
        engines = {
            name: await stack.enter_async_context(in_process_engine(config, build, name=name))
            for name in (f"node-{index}" for index in range(point.num_nodes))
        }
        client = await stack.enter_async_context(routed(engines))

        async def stream(first: int) -> list[Answer]:
            answers = []
            for request in requests[first :: point.num_streams]:
                options = RequestOptions(session_id=request.session)
                generate = partial(client.generate, options=options)
                prompt = request.prompt(VOCAB_SIZE).tolist()
                answers.append(await ask(generate, prompt, ANSWER_TOKENS))
            return answers

        streams = await asyncio.gather(*map(stream, range(point.num_streams)))
        for engine in engines.values():
            await engine.check()
    total: Counter[str] = Counter()
    for answer in itertools.chain.from_iterable(streams):
        total.update(answer.tokens_by_source)
    return by_tier(total)


def compare(point: Point) -> dict[str, tuple[float, float]]:
    """The share of each tier in percent: predicted, and found."""
    predicted, found = predict(point), asyncio.run(serve(point))
    shares = {
        tier: (
            100 * predicted[tier] / sum(predicted.values()),
            100 * found[tier] / sum(found.values()),
        )
        for tier in TIERS
    }
    told = ", ".join(f"{tier} {ours:.2f} / {real:.2f}" for tier, (ours, real) in shares.items())
    print(f"{point.name}: {told} %", file=sys.stderr, flush=True)
    return shares


def figures_of(point: Point, shares: dict[str, tuple[float, float]]) -> Iterator[Figure]:
    """How far each tier's prediction is from what was found."""
    for tier, (predicted, found) in shares.items():
        yield Figure(
            name=f"{point.name}_{tier}",
            value=abs(predicted - found),
            unit="points",
            max_value=MAX_POINTS,
            baseline=found,
            baseline_name="% in the engine",
        )


def points_of(num_requests: int, only: str | None, num_nodes: int | None = None) -> list[Point]:
    """All points, or those whose names begin so, or those of so many nodes."""
    points = [
        Point(
            trace=trace,
            times_l1=times_l1,
            policy=policy,
            has_l3=has_l3,
            num_requests=num_requests,
        )
        for trace in TRACE_NAMES
        for times_l1 in TIMES_L1
        for policy in POLICIES
        for has_l3 in (False, True)
    ]
    points += [
        Point(
            trace=trace,
            times_l1=times_l1,
            policy="write_through",
            has_l3=False,
            num_requests=num_requests,
            num_nodes=NUM_NODES,
        )
        for trace in TRACE_NAMES
        for times_l1 in TIMES_L1_OF_NODES
    ]
    return [
        each
        for each in points
        if (only is None or each.name.startswith(only)) and num_nodes in (None, each.num_nodes)
    ]


def main() -> int:
    """Compare all points, print the record, and return 1 if one is too far off."""
    parser = make_parser(__doc__)
    parser.add_argument("--requests", type=count, default=1200, help="of each trace")
    parser.add_argument("--processes", type=count, default=1, help="engines at the same time")
    parser.add_argument("--only", help="the points whose names begin so")
    parser.add_argument("--nodes", type=int, choices=(1, NUM_NODES), help="the points of so many")
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        help="predict hits and times of an engine with a real model there",
    )
    parser.add_argument("--tiny", action="store_true", help="of --device: a tiny model, no bars")
    add_results(parser, help="folder for the record")
    add_commit(parser)
    arguments = parser.parse_args()
    if arguments.device is not None:
        return compare_times(_options(arguments))
    points = points_of(arguments.requests, arguments.only, arguments.nodes)
    if not points:
        parser.error(f"no point's name begins with {arguments.only}")

    with ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn")) as pool:
        compared = list(pool.map(compare, points))
    figures = [
        figure
        for point, shares in zip(points, compared, strict=True)
        for figure in figures_of(point, shares)
    ]
    config = {"requests": arguments.requests, "streams": NUM_STREAMS, "step_s": STEP_S}
    return report(
        "prediction", config, figures, keep_in=arguments.results, at_commit=arguments.commit
    )


def _options(arguments: argparse.Namespace) -> Options:
    """What is said of an engine with a real model. Raises ConfigError without the GPU."""
    if arguments.device == "cuda":
        require_gpus(1, "--device cpu --tiny tries it without.")
    return Options(
        device=arguments.device,
        is_tiny=arguments.tiny,
        results=arguments.results,
        commit=arguments.commit,
    )


if __name__ == "__main__":
    run(main)
