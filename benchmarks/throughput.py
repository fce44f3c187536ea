"""How many tokens a second does an engine generate of many requests that come at once?

    python -m benchmarks.throughput                            # both models, 384 and 1,024 requests
    python -m benchmarks.throughput --models moe_l12 --requests 384 --repeats 1
    python -m benchmarks.throughput --tiny --device cpu
    python -m benchmarks.throughput --sleep-ms 25 --device cpu # a model that only sleeps

Prompts have 128 to 2,047 random tokens and answers 64 to 511, the same in every run; nothing is
cached at first. The engine runs on Ray, and the client, in this process, gets each answer whole.
What the Scheduler's thread and this process take is told as a part of one core. A model that only
sleeps takes the same time for each step, and its engine has no L2: so the load shows what these two
take per token where there is no GPU.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from benchmarks.engine.engines import (
    DENSE_L16,
    DENSE_TINY,
    MOE_L12,
    MOE_TINY,
    Answer,
    Options,
    Prompts,
    add_options,
    ask,
    engine_name,
    engine_sections,
    options_of,
    ray_engine,
    settle,
)
from benchmarks.model.model_shapes import ModelConfig
from benchmarks.records.command_line import count, make_parser, positive, run
from benchmarks.records.record import Figure
from raydix.runtime.actors.bootstrap.launch import start_engine
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.api.sampling_params import OutputKind
from raydix.runtime.config.loading import load_config
from raydix.runtime.testing.sleeping_runner import VOCAB_SIZE, build_sleeping_model

MODELS = {"dense_l16": (DENSE_L16, DENSE_TINY), "moe_l12": (MOE_L12, MOE_TINY)}
"""The model of each name, and its tiny likeness."""
MAX_SCHEDULER_PART, MAX_CLIENT_PART = 0.40, 0.60


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is asked, and how large the engine is."""

    num_requests: tuple[int, ...] = (384, 1024)
    prompt_tokens: tuple[int, int] = (128, 2047)
    output_tokens: tuple[int, int] = (64, 511)
    page_size: int = 64
    l1_tokens: int | None = None
    """The tokens that L1 holds; None: as many as the GPU's memory has room for."""
    l2_bytes: int = 16 << 30
    chunk_tokens: int = 8192
    max_running_requests: int = 512

    def sections(self) -> dict[str, Any]:
        """The engine's configuration but for its model."""
        longest = self.prompt_tokens[1] + self.output_tokens[1] + 2
        sections = engine_sections(
            max_model_len=-(-longest // self.page_size) * self.page_size,
            page_size=self.page_size,
            l1_pages=(self.l1_tokens or 0) // self.page_size,
            l2_bytes=self.l2_bytes,
            chunk_tokens=self.chunk_tokens,
            max_running_requests=self.max_running_requests,
        )
        if self.l1_tokens is None:
            del sections["cache"]["l1"]
        return sections


TINY = Load(
    num_requests=(12,),
    prompt_tokens=(8, 60),
    output_tokens=(4, 12),
    page_size=16,
    l1_tokens=2048,
    l2_bytes=16 << 20,
    chunk_tokens=128,
    max_running_requests=8,
)


@dataclass(frozen=True, kw_only=True)
class Round:
    """One round of the load."""

    wall_s: float
    answers: list[Answer]
    client_s: float
    """The processor time of this process."""
    scheduler_s: float
    """The processor time of the Scheduler's thread."""
    step_s: float
    """How long the GPU was in steps."""


async def play(llm: AsyncLLM, load: Load, prompts: Prompts, num_requests: int) -> Round:
    """All requests at once, until the last has ended."""
    draw = np.random.default_rng(num_requests)
    lengths, outputs = (
        draw.integers(least, most, num_requests, endpoint=True).tolist()
        for least, most in (load.prompt_tokens, load.output_tokens)
    )
    drawn = [prompts.draw(length) for length in lengths]
    before = await llm.stats()
    began_s, client_s = time.monotonic(), time.process_time()
    answers = await asyncio.gather(
        *(
            ask(llm.generate, prompt, num_tokens, OutputKind.FINAL)
            for prompt, num_tokens in zip(drawn, outputs, strict=True)
        )
    )
    wall_s, client_s = time.monotonic() - began_s, time.process_time() - client_s
    after = await llm.stats()
    await settle(llm.stats)
    return Round(
        wall_s=wall_s,
        answers=list(answers),
        client_s=client_s,
        scheduler_s=scheduler_s(after) - scheduler_s(before),
        step_s=after["gpu0"]["compute_s"] - before["gpu0"]["compute_s"],
    )


def scheduler_s(stats: dict[str, Any]) -> float:
    """The processor time of the Scheduler's thread since its start."""
    return float(stats["scheduler"]["scheduler_cpu_s"])


@asynccontextmanager
async def sleeping_engine(load: Load, sleep_ms: float) -> AsyncIterator[AsyncLLM]:
    """An engine of actors whose model sleeps so long for each step, on the CPU."""
    longest = load.prompt_tokens[1] + load.output_tokens[1] + 2
    pages_each = -(-longest // load.page_size)
    sections = load.sections()
    sections["cache"] |= {"l1": {"num_pages": max(load.num_requests) * pages_each}, "l2": None}
    sections["model"]["path"] = "none"
    config = load_config(sections)
    build_model = partial(build_sleeping_model, step_s=sleep_ms / 1e3)
    name = engine_name("throughput")
    handle = await asyncio.to_thread(start_engine, config, name, None, None, build_model)
    try:
        yield await AsyncLLM.connect(name)
    finally:
        await handle.shutdown()


async def measure(
    options: Options,
    name: str,
    load: Load,
    vocab_size: int,
    engine: AbstractAsyncContextManager[AsyncLLM],
) -> list[Figure]:
    """Medians over `repeats` rounds of each number of requests, after a short one."""
    prompts = Prompts(vocab_size)
    figures: list[Figure] = []
    async with engine as llm:
        await play(llm, load, prompts, min(load.num_requests) // 4)
        for num_requests in load.num_requests:
            rounds = [await play(llm, load, prompts, num_requests) for _ in range(options.repeats)]
            figures += of_rounds(options, f"{name}, {num_requests} requests", rounds)
    return figures


def of_rounds(options: Options, what: str, rounds: Sequence[Round]) -> list[Figure]:
    """The figures of rounds that were alike."""

    def tokens(each: Round) -> int:
        return sum(answer.num_tokens for answer in each.answers)

    def part(name: str, seconds: Sequence[float], bar: float | None) -> Figure:
        parts = [each / one.wall_s for each, one in zip(seconds, rounds, strict=True)]
        return Figure(
            name=f"{name}, {what}", value=median(parts), unit="1", max_value=options.bar(bar)
        )

    client_us, scheduler_us = (
        median(1e6 * seconds(each) / tokens(each) for each in rounds)
        for seconds in (lambda each: each.client_s, lambda each: each.scheduler_s)
    )
    return [
        Figure(
            name=f"output, {what}",
            value=median(tokens(each) / each.wall_s for each in rounds),
            unit="tokens/s",
        ),
        part("in steps", [each.step_s for each in rounds], None),
        part("Scheduler's thread", [each.scheduler_s for each in rounds], MAX_SCHEDULER_PART),
        part("client", [each.client_s for each in rounds], MAX_CLIENT_PART),
        Figure(name=f"Scheduler's thread, for each token, {what}", value=scheduler_us, unit="us"),
        Figure(name=f"client, for each token, {what}", value=client_us, unit="us"),
    ]


def main(
    options: Options, models: Sequence[str], changes: dict[str, Any], sleep_ms: float | None = None
) -> int:
    """Measure and report. `changes`: of the load. `sleep_ms`: of each step, in place of models."""
    load = replace(TINY if options.is_tiny else Load(), **changes)
    if sleep_ms is not None:
        engine = sleeping_engine(load, sleep_ms)
        name = f"steps of {sleep_ms:g} ms"
        figures = asyncio.run(measure(options, name, load, VOCAB_SIZE, engine))
        return options.report("throughput_asleep", asdict(load), figures)

    figures = []
    for name in models:
        model: ModelConfig = MODELS[name][options.is_tiny]
        engine = ray_engine(options, model, load.sections(), "throughput")
        figures += asyncio.run(measure(options, name, load, int(model["vocab_size"]), engine))
    return options.report("throughput", asdict(load), figures)


def command() -> int:
    """Read the command line and measure."""
    command_line = make_parser(__doc__)
    add_options(command_line, Options(repeats=2))
    command_line.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    command_line.add_argument("--requests", type=count, nargs="+")
    command_line.add_argument("--max-running-requests", type=count)
    command_line.add_argument("--sleep-ms", type=positive, help="of a model that only sleeps")
    read = command_line.parse_args()
    changes: dict[str, Any] = {}
    if read.requests is not None:
        changes["num_requests"] = tuple(read.requests)
    if read.max_running_requests is not None:
        changes["max_running_requests"] = read.max_running_requests
    return main(options_of(read), read.models, changes, read.sleep_ms)


if __name__ == "__main__":
    run(command)
