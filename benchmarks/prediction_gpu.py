"""Hits and first tokens' times as `raydix simulate` predicts them, beside an engine that computes.

    python -m benchmarks.prediction --device cuda                # one H200, three minutes
    python -m benchmarks.prediction --device cpu --tiny          # a tiny model in one process

An engine with random weights is measured as `raydix profile` does it, by prompts of random tokens.
Then it serves requests of two traces in turn, a block as a page of 64 tokens, through a few
streams, in each of which the next request follows the last answer: three times, so many that they
need 2.8, 5.6 and 11.2 times the pages of L1. L2 has one and a half times as many, and both are
emptied before. The simulator is told the profile, the engine's configuration and the requests.
"""

import asyncio
import itertools
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.engine.engines import (
    DENSE_L16,
    DENSE_TINY,
    Answer,
    Options,
    ask,
    dummy_config,
    engine_name,
    engine_sections,
    settle,
)
from benchmarks.model.model_shapes import ModelConfig
from benchmarks.records.record import Figure
from raydix.runtime.actors.bootstrap.engine_sizes import measure_checkpoint, size_engine
from raydix.runtime.actors.torch_builder import build_torch_model
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.cli.profile import measure_profile
from raydix.runtime.cli.profile_probe import MeasuredEngine
from raydix.runtime.cli.simulated_service import service_of
from raydix.runtime.cli.source_table import by_tier
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.foresight.simulator.profile import Profile
from raydix.runtime.foresight.simulator.requests import ClientRequest
from raydix.runtime.foresight.simulator.simulation import Simulation
from raydix.runtime.foresight.traces import read_trace
from raydix.runtime.testing.engine import in_process_engine
from raydix.runtime.testing.llm import InProcessLLM

TRACES = Path(__file__).parent / "traces"
TIMES_L1 = (2.8, 5.6, 11.2)
L2_OF_L1 = 1.5
MAX_POINTS = 2.0
MAX_OFF = {50: 15.0, 90: 25.0}
"""The bars of times to the first token in percent, by percentile."""
TIERS = ("l1", "l2", "computed")
SKIPPED_BLOCKS = {"conversation": 0, "agentic": 90}
"""The leading blocks that are left out, as nearly all prompts have them."""


class ServingEngine(MeasuredEngine, Protocol):
    """What is asked of an engine besides."""

    async def flush(self) -> Mapping[str, Any]:
        """Drop what L1 and L2 hold."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The engine, and what is asked of it."""

    l1_pages: int = 1500
    page_size: int = 64
    max_blocks: int = 96
    """Longer prompts end there."""
    answer_tokens: int = 16
    num_streams: int = 8
    chunk_tokens: int = 8192
    max_model_len: int = 16_384
    l2_page_bytes: int = 4 << 20

    @property
    def sections(self) -> dict[str, Any]:
        """The engine's configuration, but for its model."""
        return engine_sections(
            max_model_len=self.max_model_len,
            page_size=self.page_size,
            l1_pages=self.l1_pages,
            # A page of the arena has a header besides.
            l2_bytes=round(L2_OF_L1 * self.l1_pages * (self.l2_page_bytes + 4096)),
            chunk_tokens=self.chunk_tokens,
        )


TINY = Sizes(
    l1_pages=100,
    max_blocks=32,
    answer_tokens=4,
    num_streams=2,
    chunk_tokens=1024,
    max_model_len=4096,
    l2_page_bytes=16 << 10,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What came of a piece of a trace, predicted or served."""

    prompt_tokens: dict[str, int]
    ttft_ms: dict[int, float]
    """The times to the first token, by percentile."""

    @property
    def shares(self) -> dict[str, float]:
        """The share of each tier in percent."""
        total = sum(self.prompt_tokens.values())
        return {tier: 100 * self.prompt_tokens[tier] / total for tier in TIERS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Requests of both traces."""

    name: str
    requests: list[ClientRequest]


def pieces(sizes: Sizes) -> Iterator[Piece]:
    """The pieces, the smallest first."""
    traces = [_blocks_of(trace, skipped, sizes) for trace, skipped in SKIPPED_BLOCKS.items()]
    in_turn = list(itertools.chain.from_iterable(zip(*traces, strict=False)))
    for times_l1 in TIMES_L1:
        requests = _requests(in_turn, sizes, round(times_l1 * sizes.l1_pages))
        yield Piece(name=f"{times_l1:g} times L1", requests=requests)


def _blocks_of(trace: str, skipped: int, sizes: Sizes) -> Iterator[tuple[int, ...]]:
    """The blocks of each prompt that is left, named apart from those of the other trace."""
    other = list(SKIPPED_BLOCKS).index(trace)
    for request in read_trace(TRACES / f"{trace}.jsonl.gz"):
        if blocks := request.blocks[skipped : skipped + sizes.max_blocks]:
            yield tuple(len(SKIPPED_BLOCKS) * block + other for block in blocks)


def _requests(
    prompts: Sequence[tuple[int, ...]], sizes: Sizes, num_pages: int
) -> list[ClientRequest]:
    """The first requests that need so many pages, in streams."""
    taken: list[ClientRequest] = []
    needed: set[int] = set()
    for number, blocks in enumerate(prompts):
        if len(needed) >= num_pages:
            break
        needed.update(blocks)
        taken.append(
            ClientRequest(
                blocks=blocks,
                block_tokens=sizes.page_size,
                num_prompt_tokens=sizes.page_size * len(blocks),
                num_answer_tokens=sizes.answer_tokens,
                session=str(number % sizes.num_streams),
                arrival_s=0.0,
                follows=number - sizes.num_streams if number >= sizes.num_streams else None,
            )
        )
    return taken


def predict(config: EngineConfig, profile: Profile, requests: Sequence[ClientRequest]) -> Found:
    """What `raydix simulate` says."""
    model = measure_checkpoint(config)
    service = service_of(config, size_engine(config, model), model.vocab_size)
    outcome = Simulation(service, profile, requests).run()
    return Found(
        prompt_tokens=outcome.prompt_tokens,
        ttft_ms={percent: 1e3 * outcome.first_token_s[f"p{percent}"] for percent in MAX_OFF},
    )


async def serve(
    engine: ServingEngine, requests: Sequence[ClientRequest], sizes: Sizes, vocab_size: int
) -> Found:
    """What the engine does with the same requests, and nothing of them cached before."""
    await settle(engine.stats)
    await engine.flush()
    prompts = [request.prompt(vocab_size).tolist() for request in requests]

    async def stream(first: int) -> list[Answer]:
        own = range(first, len(requests), sizes.num_streams)
        return [await ask(engine.generate, prompts[each], sizes.answer_tokens) for each in own]

    streams = await asyncio.gather(*map(stream, range(sizes.num_streams)))
    answers = list(itertools.chain.from_iterable(streams))
    total: Counter[str] = Counter()
    for answer in answers:
        total.update(answer.tokens_by_source)
    times_ms = [answer.ttft_ms for answer in answers]
    return Found(
        prompt_tokens=by_tier(total),
        ttft_ms={percent: float(np.percentile(times_ms, percent)) for percent in MAX_OFF},
    )


@asynccontextmanager
async def serving_engine(options: Options, config: EngineConfig) -> AsyncIterator[ServingEngine]:
    """An engine of actors, as users have it; on the CPU one of this process."""
    if options.device == "cpu":
        async with in_process_engine(config, build_torch_model) as engine:
            yield InProcessLLM(engine, engine.client)
    else:
        async with await AsyncLLM.start(config, name=engine_name("prediction")) as llm:
            yield llm


async def measure(
    options: Options, sizes: Sizes, model: ModelConfig, tell: Callable[[str], None]
) -> list[Figure]:
    """Profile an engine, then predict and serve piece after piece."""
    figures: list[Figure] = []
    vocab_size = int(model["vocab_size"])
    async with (
        dummy_config(options, model, sizes.sections) as config,
        serving_engine(options, config) as engine,
    ):
        tell("the engine is there")
        profile = await measure_profile(
            engine, "measured", vocab_size=vocab_size, max_tokens=sizes.max_model_len
        )
        tell(profile.model_dump_json(exclude={"restart"}))
        for piece in pieces(sizes):
            found = await serve(engine, piece.requests, sizes, vocab_size)
            tell(f"{piece.name}: {len(piece.requests)} requests served")
            predicted = predict(config, profile, piece.requests)
            tell(told_of(piece, predicted, found))
            figures += figures_of(options, piece, predicted, found)
    return figures


def told_of(piece: Piece, predicted: Found, found: Found) -> str:
    """A line about a piece."""
    tiers = ", ".join(
        f"{tier} {predicted.shares[tier]:.2f} / {found.shares[tier]:.2f} %" for tier in TIERS
    )
    times = ", ".join(
        f"p{percent} {predicted.ttft_ms[percent]:.2f} / {found.ttft_ms[percent]:.2f} ms"
        for percent in MAX_OFF
    )
    return f"{piece.name}, predicted / found: {tiers}; first token {times}"


def figures_of(options: Options, piece: Piece, predicted: Found, found: Found) -> Iterator[Figure]:
    """How far each prediction is from what was found, and both."""

    def pair(name: str, ours: float, real: float, unit: str) -> Figure:
        return Figure(
            name=name, value=ours, unit=unit, baseline=real, baseline_name="in the engine"
        )

    def off(name: str, value: float, unit: str, most: float) -> Figure:
        return Figure(name=f"{name}: off", value=value, unit=unit, max_value=options.bar(most))

    for tier in TIERS:
        name = f"{piece.name}, {tier}"
        ours, real = predicted.shares[tier], found.shares[tier]
        yield off(name, abs(ours - real), "points", MAX_POINTS)
        yield pair(name, ours, real, "%")
    for percent, most in MAX_OFF.items():
        name = f"{piece.name}, TTFT p{percent}"
        ours, real = predicted.ttft_ms[percent], found.ttft_ms[percent]
        yield off(name, 100 * abs(ours / real - 1), "%", most)
        yield pair(name, ours, real, "ms")


def compare_times(options: Options) -> int:
    """Measure, report, and return 1 if a prediction is too far off."""
    sizes = TINY if options.is_tiny else Sizes()
    model = DENSE_TINY if options.is_tiny else DENSE_L16
    began_s = time.monotonic()

    def tell(line: str) -> None:
        # A run that is cut off has told what it knew.
        print(f"[{time.monotonic() - began_s:.0f} s] {line}", file=sys.stderr, flush=True)

    figures = asyncio.run(measure(options, sizes, model, tell))
    config = {"model": "dense_l16", "times_l1": TIMES_L1, **asdict(sizes)}
    return options.report("prediction_gpu", config, figures)
