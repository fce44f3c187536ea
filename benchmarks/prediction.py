"""What `raydix simulate` predicts, beside what an engine does: hits of every tier, point by point.

    python -m benchmarks.prediction                        # 24 engines one after the other
    python -m benchmarks.prediction --processes 12         # on a machine with cores to spare
    python -m benchmarks.prediction --only agentic:2.8:write_back:l3
    python -m benchmarks.prediction --device cuda          # times, too: benchmarks.prediction_gpu

The engine is a whole one in one process: real actors, links, arena and copies around a model that
only sleeps. Each block of a trace is a page of 64 tokens. L1 is so small that what all requests
need is 0.7, 1.4, 2.8 and 5.6 times as large, L2 has one and a half times as many pages, and every
write policy is tried, without L3 and with one that keeps everything. Requests go through a few
streams, in each of which the next one follows the last answer, there and here.

The simulator is told the sleep of a step, and nothing that the engine has found.
"""

import argparse
import asyncio
import itertools
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
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
from raydix.runtime.actors.bootstrap.engine_sizes import EngineSizes
from raydix.runtime.cli.simulated_service import service_of
from raydix.runtime.cli.source_table import by_tier
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config
from raydix.runtime.foresight.simulator.profile import CopyTimes, Profile, StepTimes
from raydix.runtime.foresight.simulator.requests import ClientRequest, requests_of
from raydix.runtime.foresight.simulator.simulation import Simulation
from raydix.runtime.foresight.traces import read_trace
from raydix.runtime.testing.engine import in_process_engine
from raydix.runtime.testing.sleeping_runner import VOCAB_SIZE

TRACES = Path(__file__).parent / "traces"
LAYOUT = make_layout(PAGE_TOKENS, num_layers=4, num_kv_heads=1, head_dim=8)
TIMES_L1 = (0.7, 1.4, 2.8, 5.6)
POLICIES = ("write_through", "write_through_selective", "write_back")
L2_OF_L1 = 1.5
MAX_POINTS = 2.0
STEP_S = 0.004
NUM_STREAMS = 4
ANSWER_TOKENS = 4
MAX_BLOCKS = 96
"""Longer prompts end there: several have to fit into the smallest L1."""
SKIPPED_BLOCKS = {"conversation": 0, "agentic": 90}
"""The leading blocks that are left out, as nearly all prompts have them."""
MAX_TOKENS = PAGE_TOKENS * (MAX_BLOCKS + 1)
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

    @property
    def name(self) -> str:
        """Its name in the record, and of `--only`."""
        tail = ":l3" if self.has_l3 else ""
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
                follows=index - NUM_STREAMS if index >= NUM_STREAMS else None,
            )
            for index, (request, blocks) in enumerate(long[: self.num_requests])
        ]

    def num_pages(self, requests: Sequence[ClientRequest]) -> int:
        """The pages of L1."""
        needed = len({block for request in requests for block in request.blocks})
        return max(round(needed / self.times_l1), NUM_STREAMS * (MAX_BLOCKS + 2))

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
        weight_bytes=0,
        step_bytes=0,
        num_pages=(num_pages,),
        l1_bytes=None,
        max_model_len=MAX_TOKENS,
        arena_bytes=config.cache.l2.bytes_per_node,
        expert_store_bytes=0,
    )
    return Simulation(service_of(config, sizes, VOCAB_SIZE), PROFILE, requests).run().prompt_tokens


async def serve(point: Point) -> dict[str, int]:
    """Prompt tokens by tier, as an engine has found them."""
    requests = point.requests()
    build: Any = partial(build_model, layout=LAYOUT, step_s=STEP_S)
    async with in_process_engine(point.config(point.num_pages(requests)), build) as engine:

        async def stream(first: int) -> list[Answer]:
            own = requests[first::NUM_STREAMS]
            generate = engine.client.generate
            return [
                await ask(generate, each.prompt(VOCAB_SIZE).tolist(), ANSWER_TOKENS) for each in own
            ]

        streams = await asyncio.gather(*map(stream, range(NUM_STREAMS)))
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


def points_of(num_requests: int, only: str | None) -> list[Point]:
    """All points, or those whose names begin so."""
    points = [
        Point(
            trace=trace,
            times_l1=times_l1,
            policy=policy,
            has_l3=has_l3,
            num_requests=num_requests,
        )
        for trace in ("conversation", "agentic")
        for times_l1 in TIMES_L1
        for policy in POLICIES
        for has_l3 in (False, True)
    ]
    return [each for each in points if only is None or each.name.startswith(only)]


def main() -> int:
    """Compare all points, print the record, and return 1 if one is too far off."""
    parser = make_parser(__doc__)
    parser.add_argument("--requests", type=count, default=1200, help="of each trace")
    parser.add_argument("--processes", type=count, default=1, help="engines at the same time")
    parser.add_argument("--only", help="the points whose names begin so")
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
    points = points_of(arguments.requests, arguments.only)
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
