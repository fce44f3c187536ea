"""`raydix bench`: latency under a multi-turn workload, cold and warm, and tokens by source."""

import asyncio
import platform
import random
import time
import uuid
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from raydix import __version__
from raydix.runtime.api.sampling_params import OutputKind, SamplingParams
from raydix.runtime.cli.engine_access import open_engine
from raydix.runtime.cli.options import (
    Address,
    AsJson,
    OptionalConnect,
    Settings,
    Source,
    config_unless_connected,
)
from raydix.runtime.cli.output import print_json, standard_output
from raydix.runtime.cli.source_table import source_table

if TYPE_CHECKING:
    from raydix.runtime.api.client import AsyncLLM

_MAX_TOKEN_ID = 200
"""Prompts use small ids only, which every vocabulary has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Conversations that grow from turn to turn.

    The first prompt has `prompt_tokens`; each later turn adds the output and `turn_tokens`.
    """

    num_conversations: int
    num_turns: int
    max_concurrent: int
    prompt_tokens: int
    turn_tokens: int
    output_tokens: int
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One request as its client saw it."""

    first_token_s: float
    per_token_s: float
    """Mean time between output tokens after the first."""
    tokens_by_source: dict[str, int]
    token_ids: list[int]


def bench(
    source: Source = None,
    *,
    conversations: Annotated[int, typer.Option(min=1)] = 8,
    turns: Annotated[
        int, typer.Option(min=2, help="Turns per conversation; all but the first count.")
    ] = 4,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests in flight.")] = 4,
    prompt_tokens: Annotated[
        int, typer.Option(min=1, help="Of a conversation's first prompt.")
    ] = 512,
    turn_tokens: Annotated[
        int, typer.Option(min=1, help="Added by each later turn, besides the output.")
    ] = 64,
    output_tokens: Annotated[int, typer.Option(min=2)] = 32,
    seed: Annotated[int, typer.Option(help="Of the random prompts.")] = 0,
    settings: Settings = None,
    connect: OptionalConnect = None,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Measure times to first and per output token under a multi-turn load, cold and warm."""
    config = config_unless_connected(source, settings, connect)
    workload = Workload(
        num_conversations=conversations,
        num_turns=turns,
        max_concurrent=concurrency,
        prompt_tokens=prompt_tokens,
        turn_tokens=turn_tokens,
        output_tokens=output_tokens,
        seed=seed,
    )

    async def run(out: Console) -> dict[str, Any]:
        async with await open_engine(config, connect, address) as engine:
            return await run_bench(engine, workload, out)

    with standard_output(as_json) as (out, stdout):
        record = asyncio.run(run(out))
        if as_json:
            print_json(record, stdout)


async def run_bench(engine: "AsyncLLM", workload: Workload, console: Console) -> dict[str, Any]:
    """Run the workload twice and return the record.

    Warm: every turn but the first, with what earlier turns left in the cache. Cold: the same
    prompts once more, each under a cache salt of its own, so that nothing can be reused.
    """
    run_id = uuid.uuid4().hex
    admitted = asyncio.Semaphore(workload.max_concurrent)
    rng = random.Random(workload.seed)
    histories = [
        _random_tokens(rng, workload.prompt_tokens) for _ in range(workload.num_conversations)
    ]
    warm: list[Timing] = []
    warm_prompts: list[list[int]] = []
    with Progress(console=console) as bar:
        task = bar.add_task("warm", total=workload.num_conversations * workload.num_turns)
        for turn in range(workload.num_turns):
            jobs = [_ask(engine, prompt, workload, admitted, run_id) for prompt in histories]
            timings = await _run_all(jobs, bar, task)
            if turn > 0:
                warm += timings
                warm_prompts += [list(prompt) for prompt in histories]
            for history, timing in zip(histories, timings, strict=True):
                history += timing.token_ids + _random_tokens(rng, workload.turn_tokens)

        task = bar.add_task("cold", total=len(warm_prompts))
        jobs = [
            _ask(engine, prompt, workload, admitted, f"{run_id}-{i}")
            for i, prompt in enumerate(warm_prompts)
        ]
        cold = await _run_all(jobs, bar, task)

    record: dict[str, Any] = {
        "name": "bench",
        "version": __version__,
        "machine": f"{platform.node()} {platform.machine()}",
        "config": asdict(workload),
        "unit": "ms",
        "value": {"cold": _summary(cold), "warm": _summary(warm)},
    }
    console.print(_table(record["value"]))
    console.print(source_table({"cold": _sources(cold), "warm": _sources(warm)}))
    return record


async def _run_all(
    jobs: Sequence[Coroutine[Any, Any, Timing]], bar: Progress, title: TaskID
) -> list[Timing]:
    """Run all jobs at once; the bar moves as each ends. Results keep the order of the jobs."""

    async def advancing(job: Coroutine[Any, Any, Timing]) -> Timing:
        timing = await job
        bar.advance(title)
        return timing

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(advancing(job)) for job in jobs]
    return [task.result() for task in tasks]


async def _ask(
    engine: "AsyncLLM",
    prompt: list[int],
    workload: Workload,
    admitted: asyncio.Semaphore,
    cache_salt: str,
) -> Timing:
    params = SamplingParams(
        temperature=0.0,
        max_tokens=workload.output_tokens,
        ignore_eos=True,
        output_kind=OutputKind.CUMULATIVE,
        detokenize=False,
    )
    token_ids: list[int] = []
    sources: dict[str, int] = {}

    async with admitted:
        # The wait for a turn is the benchmark's, not the engine's.
        sent_s = first_s = last_s = time.monotonic()
        async for output in engine.generate(
            {"prompt_token_ids": list(prompt)}, params, cache_salt=cache_salt
        ):
            last_s = time.monotonic()
            if not token_ids and output.outputs[0].token_ids:
                first_s = last_s
            token_ids = list(output.outputs[0].token_ids)
            sources = output.metrics.cached_tokens_by_source

    return Timing(
        first_token_s=first_s - sent_s,
        per_token_s=(last_s - first_s) / max(1, len(token_ids) - 1),
        tokens_by_source=sources,
        token_ids=token_ids,
    )


def _random_tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(_MAX_TOKEN_ID) for _ in range(count)]


def _sources(timings: Sequence[Timing]) -> Counter[str]:
    total: Counter[str] = Counter()
    for timing in timings:
        total.update(timing.tokens_by_source)
    return total


def _summary(timings: Sequence[Timing]) -> dict[str, Any]:
    return {
        "num_requests": len(timings),
        "ttft_ms": _percentiles([timing.first_token_s for timing in timings]),
        "tpot_ms": _percentiles([timing.per_token_s for timing in timings]),
        "tokens_by_source": dict(_sources(timings)),
    }


def _percentiles(seconds: Sequence[float]) -> dict[str, float]:
    p90 = quantiles(seconds, n=10)[-1] if len(seconds) > 1 else seconds[0]
    return {"p50": round(1e3 * median(seconds), 3), "p90": round(1e3 * p90, 3)}


def _table(value: dict[str, dict[str, Any]]) -> Table:
    table = Table(title="Latency in ms")
    for title in ("", "TTFT p50", "TTFT p90", "TPOT p50", "TPOT p90"):
        table.add_column(title, justify="right")
    for phase, summary in value.items():
        figures = [
            summary[kind][part] for kind in ("ttft_ms", "tpot_ms") for part in ("p50", "p90")
        ]
        table.add_row(phase, *(f"{figure:.2f}" for figure in figures))
    return table
