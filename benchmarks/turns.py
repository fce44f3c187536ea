"""Measure conversations whose histories have left L1 when their turn comes.

    python -m benchmarks.turns                     # 16 and 4 streams, one H200
    python -m benchmarks.turns --streams 32 --num-sessions 96 --l2-bytes 51539607552 --dp 2
    python -m benchmarks.turns --streams 64 --num-sessions 192 --l2-bytes 68719476736 --dp 4
    python -m benchmarks.turns --tiny --device cpu

Every session takes its turn before any takes the next; each turn adds new tokens to all that was
said before, behind a system prompt that all share. The wall time and what clients see are taken
through `AsyncLLM`, on Ray. The steps are those of a run in one process: how many of each kind, what
they took the host and the device, and what a device would need that reached its peak rates. With
several GPUs (`--dp`) clients alone are measured.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.engine.engines import (
    DENSE_L16,
    DENSE_TINY,
    Answer,
    Generate,
    Options,
    Prompts,
    add_options,
    ask,
    dummy_engine,
    engine_sections,
    options_of,
    ray_engine,
    settle,
)
from benchmarks.engine.gpu_steps import StepLog, step_floor_s
from benchmarks.model.model_shapes import ModelConfig
from benchmarks.records.command_line import count, make_parser, run
from benchmarks.records.record import Figure
from raydix.runtime.api.client import AsyncLLM

MAX_SCHEDULER_PART = 0.6


@dataclass(frozen=True, kw_only=True)
class Turns:
    """The load, and how much the tiers hold."""

    num_sessions: int = 64
    num_turns: int = 6
    system_tokens: int = 1024
    min_new_tokens: int = 256
    max_new_tokens: int = 1535
    output_tokens: int = 64
    page_size: int = 64
    l1_tokens: int = 131_072
    l2_bytes: int = 32 << 30
    max_model_len: int = 16_384
    chunk_tokens: int = 8192
    max_decode_slowdown: float | None = None
    """The largest slowdown; None: the default."""
    dp: int = 1
    """GPUs, each with the whole model and an L1 of this size."""

    def sections(self, num_streams: int) -> dict[str, Any]:
        """The engine's configuration but for its model."""
        sections = engine_sections(
            max_model_len=self.max_model_len,
            page_size=self.page_size,
            l1_pages=self.l1_tokens // self.page_size,
            l2_bytes=self.l2_bytes,
            chunk_tokens=self.chunk_tokens,
            max_running_requests=max(num_streams, 64),
        )
        sections["parallel"] = {"dp": self.dp}
        if self.max_decode_slowdown is not None:
            sections["scheduler"]["max_decode_slowdown"] = self.max_decode_slowdown
        return sections


TINY = Turns(
    num_sessions=6,
    num_turns=3,
    system_tokens=32,
    min_new_tokens=16,
    max_new_tokens=48,
    output_tokens=4,
    page_size=16,
    l1_tokens=1024,
    l2_bytes=16 << 20,
    max_model_len=512,
    chunk_tokens=128,
)


@dataclass(frozen=True, kw_only=True)
class Bars:
    """What a run is to reach, in ms but for the first; None: no bar."""

    min_floor: float | None = None
    """The device's floor over the wall time."""
    ttft_p50: float | None = None
    ttft_p95: float | None = None
    tpot_p50: float | None = None


BARS = {
    16: Bars(min_floor=0.73, ttft_p50=48, ttft_p95=105, tpot_p50=3.75),
    4: Bars(min_floor=0.68, ttft_p50=22, ttft_p95=42, tpot_p50=1.75),
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of the load."""

    wall_s: float
    answers: list[Answer]
    prompt_tokens: int
    step_s: float = 0.0
    """How long the GPUs were in steps, all together, but for waits for loads."""
    scheduler_s: float = 0.0
    """The processor time of the Scheduler's thread."""


async def play(generate: Generate, load: Turns, prompts: Prompts, num_streams: int) -> Run:
    """All turns of all sessions, `num_streams` at a time."""
    lengths = np.random.default_rng(1).integers(
        load.min_new_tokens, load.max_new_tokens + 1, (load.num_turns, load.num_sessions)
    )
    system = prompts.draw(load.system_tokens)
    histories = [list(system) for _ in range(load.num_sessions)]
    waiting = iter(np.ndindex(load.num_turns, load.num_sessions))
    answers: list[Answer] = []
    prompt_tokens = 0

    async def stream() -> None:
        nonlocal prompt_tokens
        for turn, session in waiting:
            histories[session] += prompts.draw(int(lengths[turn, session]))
            prompt_tokens += len(histories[session])
            answers.append(await ask(generate, histories[session], load.output_tokens))
            # What was answered is drawn: the sampled tokens are nobody's business here.
            histories[session] += prompts.draw(load.output_tokens)

    began_s = time.monotonic()
    await asyncio.gather(*(stream() for _ in range(num_streams)))
    return Run(wall_s=time.monotonic() - began_s, answers=answers, prompt_tokens=prompt_tokens)


async def measure(
    options: Options, model: ModelConfig, load: Turns, num_streams: int
) -> list[Figure]:
    """What clients see, and the steps behind it."""
    prompts = Prompts(int(model["vocab_size"]))
    runs: list[Run] = []
    async with ray_engine(options, model, load.sections(num_streams), "turns") as llm:
        warm = replace(load, num_turns=1, num_sessions=min(num_streams, load.num_sessions))
        await play(llm.generate, warm, prompts, num_streams)
        for _ in range(options.repeats):
            await settle(llm.stats)
            before = await spent(llm)
            run = await play(llm.generate, load, prompts, num_streams)
            step_s, scheduler_s = (await spent(llm) - before).tolist()
            runs.append(replace(run, step_s=step_s, scheduler_s=scheduler_s))
    if load.dp > 1:
        return of_clients(options, runs, num_streams, load.dp)
    log = StepLog()
    async with dummy_engine(options, model, load.sections(num_streams), log.build_model) as engine:
        await play(engine.client.generate, warm, prompts, num_streams)
        await engine.settle()
        log.clear()
        await play(engine.client.generate, load, prompts, num_streams)
        await engine.settle()
    floor_s = sum(step_floor_s(step, model) for step in log.steps)
    return [
        *of_clients(options, runs, num_streams, load.dp),
        of_floor(options, runs, num_streams, floor_s),
        *(replace(each, name=f"{each.name}, {num_streams} streams") for each in log.figures()),
    ]


async def spent(llm: AsyncLLM) -> NDArray[np.float64]:
    """What was spent since the engine's start, in s: GPUs in steps, all together; the Scheduler."""
    stats = await llm.stats()
    in_steps_s = sum(stats[name]["compute_s"] for name in stats if name.startswith("gpu"))
    return np.array([in_steps_s, stats["scheduler"]["scheduler_cpu_s"]])


def of_floor(options: Options, runs: Sequence[Run], num_streams: int, floor_s: float) -> Figure:
    """What a device at its peak rates would need, over the median run."""
    bars = BARS.get(num_streams, Bars())
    return Figure(
        name=f"floor over wall, {num_streams} streams",
        value=floor_s / float(np.median([run.wall_s for run in runs])),
        unit="1",
        min_value=options.bar(bars.min_floor),
    )


def of_clients(
    options: Options, runs: Sequence[Run], num_streams: int, num_gpus: int
) -> list[Figure]:
    """Medians over runs; `in steps` is the part of the wall time in which a GPU has a step."""
    bars = BARS.get(num_streams, Bars())

    def median(values: list[float]) -> float:
        return float(np.median(values))

    def of_answers(percent: float, name: str) -> float:
        return median(
            [float(np.percentile([getattr(a, name) for a in run.answers], percent)) for run in runs]
        )

    wall_s = median([run.wall_s for run in runs])
    cached = median([cached_fraction(run) for run in runs])
    scheduler = median([run.scheduler_s / run.wall_s for run in runs])
    in_steps = median([run.step_s / run.wall_s for run in runs]) / num_gpus
    ttft = [of_answers(percent, "ttft_ms") for percent in (50, 95)]
    tpot = of_answers(50, "tpot_ms")
    streams = f"{num_streams} streams"
    return [
        Figure(name=f"wall, {streams}", value=wall_s, unit="s"),
        Figure(
            name=f"TTFT p50, {streams}",
            value=ttft[0],
            unit="ms",
            max_value=options.bar(bars.ttft_p50),
        ),
        Figure(
            name=f"TTFT p95, {streams}",
            value=ttft[1],
            unit="ms",
            max_value=options.bar(bars.ttft_p95),
        ),
        Figure(
            name=f"TPOT p50, {streams}",
            value=tpot,
            unit="ms",
            max_value=options.bar(bars.tpot_p50),
        ),
        Figure(name=f"prompt tokens cached, {streams}", value=cached, unit="1"),
        Figure(name=f"in steps, {streams}", value=in_steps, unit="1"),
        Figure(
            name=f"Scheduler's thread, {streams}",
            value=scheduler,
            unit="1",
            max_value=options.bar(MAX_SCHEDULER_PART),
        ),
    ]


def cached_fraction(run: Run) -> float:
    """The part of all prompt tokens that came from a tier."""
    cached = sum(
        count
        for answer in run.answers
        for source, count in answer.tokens_by_source.items()
        if not source.startswith("computed:")
    )
    return cached / run.prompt_tokens


def main(options: Options, streams: Sequence[int], changes: dict[str, Any]) -> int:
    """Measure and report. `changes`: of the load."""
    load, model = (TINY, DENSE_TINY) if options.is_tiny else (Turns(), DENSE_L16)
    load = replace(load, **changes)
    figures = []
    for num_streams in streams:
        figures += asyncio.run(measure(options, model, load, num_streams))
    name = "turns" if load.dp == 1 else f"turns_dp{load.dp}"
    return options.report(name, {"model": "dense_l16", **asdict(load)}, figures)


def command() -> int:
    """Read the command line and measure."""
    command_line = make_parser(__doc__)
    add_options(command_line, Options())
    command_line.add_argument("--streams", type=count, nargs="+", default=[16, 4])
    for name in ("num_sessions", "l2_bytes", "chunk_tokens", "dp"):
        command_line.add_argument(f"--{name.replace('_', '-')}", type=count)
    command_line.add_argument("--max-decode-slowdown", type=float)
    read = command_line.parse_args()
    given = {
        name: value
        for name, value in vars(read).items()
        if value is not None and name in Turns.__dataclass_fields__
    }
    return main(options_of(read, num_gpus=read.dp or 1), read.streams, given)


if __name__ == "__main__":
    run(command)
