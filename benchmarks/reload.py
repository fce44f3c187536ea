"""Measure times to the first token of long contexts in L2 or L1, and the loads' bandwidth.

    python -m benchmarks.reload
    python -m benchmarks.reload --ranks 4     # all ranks load at once, each its own context

More contexts than L1 holds are asked about in turn, one request at a time, each time with other new
tokens: so every context has left L1 when its turn comes, and is in L1 when it is asked about twice.
Through `AsyncLLM`, on Ray.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from benchmarks.device.ceilings import load_gbps
from benchmarks.engine import reload_at_once
from benchmarks.engine.engines import (
    DENSE_L16,
    DENSE_TINY,
    Answer,
    Generate,
    Options,
    Prompts,
    Stats,
    add_options,
    ask,
    expect_sources,
    median_ttft_ms,
    options_of,
    ray_engine,
    settle,
)
from benchmarks.engine.workloads import FULL_CONTEXTS, TINY_CONTEXTS, Contexts
from benchmarks.model.model_shapes import ModelConfig
from benchmarks.records.command_line import count, make_parser, run
from benchmarks.records.record import Figure, name_with_ranks

MAX_L2_MS = {16: 28.0, 64: 25.0}
"""The longest times from L2, by page size."""
MAX_L1_MS = {16: 6.0, 64: 4.5}
MIN_LOAD_GBPS = 50.0


class Asker:
    """Asks the engine with this `generate` and `stats` about its contexts in turn."""

    def __init__(self, generate: Generate, stats: Stats, sizes: Contexts, vocab_size: int) -> None:
        self._generate = generate
        self._stats = stats
        self._sizes = sizes
        self._prompts = Prompts(vocab_size)
        self._contexts = [
            self._prompts.draw(sizes.context_tokens) for _ in range(sizes.num_contexts)
        ]

    async def ask_each(self, *, times: int = 1, **cached_tokens: int) -> list[Answer]:
        """One answer per context, the last of `times`; the tiers must give `cached_tokens`."""
        answers = []
        for context in self._contexts:
            for _ in range(times):
                prompt = context + self._prompts.draw(self._sizes.new_tokens)
                answer = await ask(self._generate, prompt, 1)
                await settle(self._stats)
            expect_sources(answer, **cached_tokens)
            answers.append(answer)
        return answers


def loading(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[float, float]:
    """Bytes and seconds of loads between two looks at the engine's figures."""
    names = ("loaded_bytes", "loading_s")
    num_bytes, seconds = (
        float(after["gpu0"][name]) - float(before["gpu0"][name]) for name in names
    )
    return num_bytes, seconds


async def measure(
    options: Options, page_size: int, sizes: Contexts, model: ModelConfig
) -> list[Figure]:
    """All states at one page size."""
    async with ray_engine(options, model, sizes.sections(page_size), "reload") as llm:
        asker = Asker(llm.generate, llm.stats, sizes, int(model["vocab_size"]))
        cold = await asker.ask_each()
        await asker.ask_each(l2=sizes.context_tokens)

        before = await llm.stats()
        from_l2: list[Answer] = []
        for _ in range(options.repeats):
            from_l2 += await asker.ask_each(l2=sizes.context_tokens)
        num_bytes, seconds = loading(before, await llm.stats())
        from_l1 = await asker.ask_each(times=2, l1=sizes.context_tokens)

    rate = num_bytes / seconds / 1e9
    ceiling = load_gbps(options.device, int(num_bytes) // len(from_l2))
    page = f"page {page_size}"
    wire_ms = num_bytes / len(from_l2) / ceiling / 1e6

    return [
        Figure(
            name=f"TTFT, L2 hit, {page}",
            value=median_ttft_ms(from_l2),
            unit="ms",
            max_value=options.bar(MAX_L2_MS[page_size]),
            baseline=wire_ms,
            baseline_name="contiguous pinned copy",
        ),
        Figure(
            name=f"load, {page}",
            value=rate,
            unit="GB/s",
            min_value=options.bar(MIN_LOAD_GBPS),
            baseline=ceiling,
            baseline_name="contiguous pinned copy",
        ),
        Figure(
            name=f"TTFT, L1 hit, {page}",
            value=median_ttft_ms(from_l1),
            unit="ms",
            max_value=options.bar(MAX_L1_MS[page_size]),
        ),
        Figure(
            name=f"TTFT, cold and beside backups, {page}", value=median_ttft_ms(cold[1:]), unit="ms"
        ),
    ]


def main(options: Options, num_ranks: int = 1) -> int:
    """Measure and report."""
    sizes, model = (TINY_CONTEXTS, DENSE_TINY) if options.is_tiny else (FULL_CONTEXTS, DENSE_L16)
    figures = []
    for page_size in (64, 16):
        work = (
            measure(options, page_size, sizes, model)
            if num_ranks == 1
            else reload_at_once.measure(options, num_ranks, page_size, sizes, model)
        )
        figures += asyncio.run(work)
    name = name_with_ranks("reload", num_ranks, usual=1)
    config = {"model": "dense_l16", "ranks": num_ranks, **asdict(sizes)}
    return options.report(name, config, figures)


def command() -> int:
    """Read the command line and measure."""
    parser = make_parser(__doc__)
    add_options(parser, Options())
    parser.add_argument("--ranks", type=count, default=1, help="GPUs, each with all of the model")
    arguments = parser.parse_args()
    return main(options_of(arguments, arguments.ranks), arguments.ranks)


if __name__ == "__main__":
    run(command)
