"""Measure what a second tensor-parallel rank gains: decoding, long prompts, and loads from L2.

    python -m benchmarks.tensor_parallel

One engine after the other serves the same requests, by Ray actors: one rank, then two, each on a
GPU of its own. First batches of short prompts generate together; then more long contexts than L1
holds are asked about in turn, so that each is computed once and comes from L2 from then on.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from benchmarks.engine.engines import (
    DENSE_TINY,
    QWEN3_32B_L16,
    Answer,
    Options,
    Prompts,
    ask,
    ask_batch,
    engine_sections,
    expect_sources,
    median_ttft_ms,
    parse_options,
    ray_engine,
    settle,
    steady_tpot_ms,
)
from benchmarks.model.model_shapes import ModelConfig
from benchmarks.records.command_line import run
from benchmarks.records.record import Figure
from raydix.runtime.api.client import AsyncLLM

MAX_TPOT_RATIO = 0.65
MAX_COLD_RATIO = 0.62
MIN_LOAD_RATIO = 1.6
DEGREES = (1, 2)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The requests, and the pages that they take."""

    batches: tuple[int, ...] = (1, 32)
    prompt_tokens: int = 256
    output_tokens: int = 256
    context_tokens: int = 16_384
    new_tokens: int = 16
    num_contexts: int = 6
    l1_tokens: int = 65_536
    l2_bytes: int = 12 << 30
    chunk_tokens: int = 8192
    page_size: int = 64

    def sections(self, tp: int) -> dict[str, Any]:
        """The engine's configuration but for its model."""
        sections = engine_sections(
            max_model_len=2 * self.context_tokens,
            page_size=self.page_size,
            l1_pages=self.l1_tokens // self.page_size,
            l2_bytes=self.l2_bytes,
            chunk_tokens=self.chunk_tokens,
            max_running_requests=max(self.batches),
        )
        return {**sections, "parallel": {"tp": tp}}


FULL = Sizes()
TINY = Sizes(
    batches=(1, 4),
    prompt_tokens=32,
    output_tokens=16,
    context_tokens=256,
    l1_tokens=1024,
    l2_bytes=8 << 20,
    chunk_tokens=128,
    page_size=16,
)


@dataclass(frozen=True, kw_only=True)
class Times:
    """What one engine took: medians, in ms."""

    tpot_ms: Mapping[int, float]
    """The time per token by batch size."""
    cold_ms: float
    """The time to the first token of a context of which nothing is cached."""
    hit_ms: float
    """The time to the first token of a context that is in L2."""
    load_ms: float
    """The time in which its pages are under way to the rank that takes longest."""


class Asker:
    """Asks one engine, and waits between requests until all its copies have ended."""

    def __init__(self, llm: AsyncLLM, sizes: Sizes, vocab_size: int) -> None:
        self._llm = llm
        self._sizes = sizes
        self._prompts = Prompts(vocab_size)

    async def tpot_ms(self, batch: int, repeats: int) -> float:
        """The steady time per token, after a round that warms up."""
        sizes, rounds = self._sizes, []
        for _ in range(1 + repeats):
            drawn = [self._prompts.draw(sizes.prompt_tokens) for _ in range(batch)]
            rounds.append(await ask_batch(self._llm.generate, drawn, sizes.output_tokens))
            await settle(self._llm.stats)
        return median(steady_tpot_ms(answers) for answers in rounds[1:])

    def draw_contexts(self) -> list[list[int]]:
        """More than L1 holds."""
        return [
            self._prompts.draw(self._sizes.context_tokens) for _ in range(self._sizes.num_contexts)
        ]

    async def ask_each(self, contexts: list[list[int]], **cached_tokens: int) -> list[Answer]:
        """One answer per context, with other new tokens; the tiers must give `cached_tokens`."""
        answers = []
        for context in contexts:
            prompt = context + self._prompts.draw(self._sizes.new_tokens)
            answer = await ask(self._llm.generate, prompt, 1)
            expect_sources(answer, **cached_tokens)
            answers.append(answer)
            await settle(self._llm.stats)
        return answers

    async def loading_s(self, num_ranks: int) -> list[float]:
        """The time for which each rank has loaded pages so far."""
        stats = await self._llm.stats()
        return [float(stats[f"gpu{rank}"]["loading_s"]) for rank in range(num_ranks)]


async def measure(options: Options, model: ModelConfig, sizes: Sizes, tp: int) -> Times:
    """Measure an engine of so many ranks."""
    async with ray_engine(options, model, sizes.sections(tp), f"tensor-parallel-{tp}") as llm:
        asker = Asker(llm, sizes, int(model["vocab_size"]))
        tpot_ms = {batch: await asker.tpot_ms(batch, options.repeats) for batch in sizes.batches}

        contexts = asker.draw_contexts()
        cold = await asker.ask_each(contexts)
        await asker.ask_each(contexts, l2=sizes.context_tokens)

        before_s = await asker.loading_s(tp)
        hits: list[Answer] = []
        for _ in range(options.repeats):
            hits += await asker.ask_each(contexts, l2=sizes.context_tokens)
        after_s = await asker.loading_s(tp)

    loading_s = max(after - before for before, after in zip(before_s, after_s, strict=True))
    return Times(
        tpot_ms=tpot_ms,
        # The first one is the first long prompt of all.
        cold_ms=median_ttft_ms(cold[1:]),
        hit_ms=median_ttft_ms(hits),
        load_ms=1e3 * loading_s / len(hits),
    )


def compare(options: Options, alone: Times, both: Times) -> list[Figure]:
    """Two ranks against one."""
    figures = []
    for batch, alone_ms in alone.tpot_ms.items():
        name = f"TPOT, batch {batch}"
        figures += ratio(name, both.tpot_ms[batch], alone_ms, max_ratio=options.bar(MAX_TPOT_RATIO))
    figures += ratio(
        "TTFT, cold", both.cold_ms, alone.cold_ms, max_ratio=options.bar(MAX_COLD_RATIO)
    )
    figures += ratio("TTFT, L2 hit", both.hit_ms, alone.hit_ms)
    return [
        *figures,
        Figure(
            name="speed of a load, 2 ranks over 1",
            value=alone.load_ms / both.load_ms,
            unit="1",
            min_value=options.bar(MIN_LOAD_RATIO),
        ),
        Figure(
            name="load",
            value=both.load_ms,
            unit="ms",
            baseline=alone.load_ms,
            baseline_name="1 rank",
        ),
    ]


def ratio(
    name: str, both_ms: float, alone_ms: float, *, max_ratio: float | None = None
) -> list[Figure]:
    """A time of two ranks, and its ratio to that of one."""
    return [
        Figure(
            name=f"{name}, 2 ranks over 1",
            value=both_ms / alone_ms,
            unit="1",
            max_value=max_ratio,
        ),
        Figure(name=name, value=both_ms, unit="ms", baseline=alone_ms, baseline_name="1 rank"),
    ]


def main(options: Options) -> int:
    """Measure and report."""
    sizes, model = (TINY, DENSE_TINY) if options.is_tiny else (FULL, QWEN3_32B_L16)
    alone, both = (asyncio.run(measure(options, model, sizes, tp)) for tp in DEGREES)
    figures = compare(options, alone, both)
    config = {"model": "qwen3_32b_l16", **asdict(sizes)}
    return options.report("tensor_parallel", config, figures)


if __name__ == "__main__":
    run(lambda: main(parse_options(__doc__, num_gpus=max(DEGREES))))
