"""Measure loads of all ranks at once: as many long contexts from L2 as there are ranks."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from benchmarks.device.ceilings import loads_gbps
from benchmarks.engine.engines import (
    Answer,
    Options,
    Prompts,
    ask,
    median_ttft_ms,
    ray_engine,
    settle,
)
from benchmarks.engine.workloads import Contexts
from benchmarks.model.model_shapes import ModelConfig
from benchmarks.records.record import Figure
from raydix.runtime.api.client import AsyncLLM

MIN_OF_COPIES = 0.85
MIN_FROM_L2 = 0.9
"""The part of prompts that has to come from L2; with less, something else would be measured."""


async def measure(
    options: Options, num_ranks: int, page_size: int, sizes: Contexts, model: ModelConfig
) -> list[Figure]:
    """Contexts come from L2 to all ranks at once, each to its own; beside it, plain copies."""
    num_contexts = num_ranks * sizes.num_contexts
    sizes = replace(sizes, num_contexts=num_contexts, l2_bytes=num_ranks * sizes.l2_bytes)
    sections = {**sizes.sections(page_size), "parallel": {"dp": num_ranks}}

    async with ray_engine(options, model, sections, "reload") as llm:
        prompts = Prompts(int(model["vocab_size"]))
        drawn = [prompts.draw(sizes.context_tokens) for _ in range(num_contexts)]
        groups = [drawn[start : start + num_ranks] for start in range(0, num_contexts, num_ranks)]

        async def ask_all() -> list[Answer]:
            answers: list[Answer] = []
            for contexts in groups:
                news = [context + prompts.draw(sizes.new_tokens) for context in contexts]
                answers += await asyncio.gather(*(ask(llm.generate, new, 1) for new in news))
                await settle(llm.stats)
            return answers

        cold = await ask_all()
        await ask_all()
        rates, from_l2 = [], list[Answer]()
        for _ in range(options.repeats):
            before = await _loads(llm, num_ranks)
            from_l2 += await ask_all()
            rates.append(_summed_gbps(before, await _loads(llm, num_ranks)))

    _expect_l2(from_l2)
    page = f"page {page_size}"
    ceiling = loads_gbps(options.device, num_ranks, sizes.l2_bytes // (2 * num_contexts))
    slowest_ms = max(answer.ttft_ms for answer in from_l2)
    return [
        Figure(
            name=f"loads of {num_ranks} ranks, {page}",
            value=median(rates),
            unit="GB/s",
            min_value=options.bar(MIN_OF_COPIES * ceiling),
            baseline=ceiling,
            baseline_name="contiguous pinned copies by all ranks at once",
        ),
        Figure(
            name=f"slowest L2 hit over the median of what is computed, {page}",
            value=slowest_ms / median_ttft_ms(cold[num_ranks:]),
            unit="1",
            max_value=options.bar(1.0),
        ),
        Figure(name=f"TTFT, L2 hit, {page}", value=median_ttft_ms(from_l2), unit="ms"),
        Figure(name=f"slowest TTFT, L2 hit, {page}", value=slowest_ms, unit="ms"),
        Figure(
            name=f"TTFT, cold and beside backups, {page}",
            value=median_ttft_ms(cold[num_ranks:]),
            unit="ms",
        ),
    ]


async def _loads(llm: AsyncLLM, num_ranks: int) -> list[tuple[float, float]]:
    """Bytes and seconds of all loads of each rank so far."""
    stats: Mapping[str, Any] = await llm.stats()
    ranks = [stats[f"gpu{rank}"] for rank in range(num_ranks)]
    return [(float(rank["loaded_bytes"]), float(rank["loading_s"])) for rank in ranks]


def _summed_gbps(
    before: Sequence[tuple[float, float]], after: Sequence[tuple[float, float]]
) -> float:
    """The ranks' bandwidths, each while it loads, added up."""
    spent = [
        (ended[0] - began[0], ended[1] - began[1])
        for began, ended in zip(before, after, strict=True)
    ]
    return sum(num_bytes / seconds for num_bytes, seconds in spent if seconds) / 1e9


def _expect_l2(answers: Sequence[Answer]) -> None:
    """Raise RuntimeError unless most of the prompts came from L2."""
    num_tokens = sum(sum(answer.tokens_by_source.values()) for answer in answers)
    num_l2 = sum(answer.tokens_by_source.get("l2", 0) for answer in answers)
    if num_l2 < MIN_FROM_L2 * num_tokens:
        raise RuntimeError(
            f"{num_l2} of {num_tokens} prompt tokens came from L2; expected {MIN_FROM_L2:.0%}"
        )
