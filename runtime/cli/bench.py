"""`raydix bench`: a multi-turn load; times to first and per output token, cold and warm, and tokens
by source.
"""

import asyncio
import platform
import random
import time
import uuid
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Any

from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from raydix import __version__
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.api.sampling_params import OutputKind, SamplingParams
from raydix.runtime.cli.source_table import source_table

_MAX_TOKEN_ID = 200
"""Prompts use small ids only, which every vocabulary has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Conversations whose first prompt has `prompt_tokens`; each later turn adds the output and
    `turn_tokens`.
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
    """One request as its client saw it. `per_token_s`: mean time between output tokens after the
    first.
    """

    first_token_s: float
    per_token_s: float
    tokens_by_source: dict[str, int]
    token_ids: list[int]


async def run_bench(engine: AsyncLLM, load: Load, console: Console) -> dict[str, Any]:
    """Run the load twice and return the record.

    Warm: every turn but the first, with what earlier turns left in the cache. Cold: the same
    prompts once more, each under a cache salt of its own, so that nothing can be reused.
    """
    rng = random.Random(load.seed)
    run_id = uuid.uuid4().hex
    admitted = asyncio.Semaphore(load.max_concurrent)
    histories = [_random_tokens(rng, load.prompt_tokens) for _ in range(load.num_conversations)]
    warm: list[Timing] = []
    cold_prompts: list[list[int]] = []
    with Progress(console=console) as bar:
        task = bar.add_task("warm", total=load.num_conversations * load.num_turns)
        for turn in range(load.num_turns):
            jobs = [_ask(engine, prompt, load, admitted, run_id) for prompt in histories]
            timings = await _run_all(jobs, bar, task)
            if turn > 0:
                warm += timings
                cold_prompts += [list(prompt) for prompt in histories]
            for history, timing in zip(histories, timings, strict=True):
                history += timing.token_ids + _random_tokens(rng, load.turn_tokens)
        task = bar.add_task("cold", total=len(cold_prompts))
        jobs = [
            _ask(engine, prompt, load, admitted, f"{run_id}-{i}")
            for i, prompt in enumerate(cold_prompts)
        ]
        cold = await _run_all(jobs, bar, task)
    record: dict[str, Any] = {
        "name": "bench",
        "version": __version__,
        "machine": f"{platform.node()} {platform.machine()}",
        "config": asdict(load),
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
    engine: AsyncLLM, prompt: list[int], load: Load, admitted: asyncio.Semaphore, cache_salt: str
) -> Timing:
    params = SamplingParams(
        temperature=0.0,
        max_tokens=load.output_tokens,
        ignore_eos=True,
        output_kind=OutputKind.CUMULATIVE,
        detokenize=False,
    )
    async with admitted:
        sent_s = first_s = last_s = time.monotonic()
        token_ids: list[int] = []
        sources: dict[str, int] = {}
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
