"""Times to the first token of long contexts that another engine's L2 holds, and of new ones.

    python -m benchmarks.pull_engines                 # two GPUs of one host, an engine on each
    python -m benchmarks.pull_engines --ranks 4       # two GPUs for each engine

One engine computes contexts; the other one, which has never seen them, pulls them over TCP on the
loopback, one request at a time. Beside it the other engine computes as many new ones. Then two
engines share one L2, in which the second one finds what the first has computed. Through `AsyncLLM`,
on Ray.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from benchmarks.engine.engines import (
    DENSE_L16,
    DENSE_TINY,
    Answer,
    Options,
    Prompts,
    ask,
    dummy_config,
    engine_name,
    expect_sources,
    median_ttft_ms,
    parse_options_of_two,
    settle,
)
from benchmarks.engine.workloads import FULL_CONTEXTS, TINY_CONTEXTS, Contexts
from benchmarks.model.model_shapes import ModelConfig
from benchmarks.records.command_line import run
from benchmarks.records.record import Figure, name_with_ranks
from raydix.runtime.api.client import AsyncLLM

MIN_SPEEDUP = 3.0
_PAGE_SIZE = 64
_POLL_S = 0.01


async def ask_each(llm: AsyncLLM, contexts: list[list[int]], **cached_tokens: int) -> list[Answer]:
    """An answer about each context, which must come from where `cached_tokens` says."""
    answers = []
    for context in contexts:
        answers.append(await ask(llm.generate, context, 1))
        await settle(llm.stats)
        expect_sources(answers[-1], **cached_tokens)
    return answers


async def until_known(puller: AsyncLLM, holder: AsyncLLM) -> None:
    """Wait until one engine knows of all pages that the other one's L2 has."""
    num_pages = (await holder.stats())["host"]["pages_ready"]
    while (await puller.stats())["scheduler"]["peer_known_pages"] < num_pages:
        await asyncio.sleep(_POLL_S)


def sections_of(sizes: Contexts, tp: int, l2: Mapping[str, object]) -> dict[str, Any]:
    """The configuration of each engine, but for its model."""
    sections = sizes.sections(_PAGE_SIZE)
    sections["parallel"] = {"tp": tp}
    sections["cache"]["load"] = "always"
    sections["cache"]["prefetch"] = {"strategy": "wait_complete"}
    sections["cache"]["l2"] |= l2
    return sections


@asynccontextmanager
async def two_engines(
    options: Options, model: ModelConfig, sections: Mapping[str, Any]
) -> AsyncIterator[tuple[AsyncLLM, AsyncLLM]]:
    """The one that computes, and the one that finds."""
    async with (
        dummy_config(options, model, sections) as config,
        await AsyncLLM.start(config, name=engine_name("holder")) as holder,
        await AsyncLLM.start(config, name=engine_name("finder")) as finder,
    ):
        yield holder, finder


class Asker:
    """Draws contexts, and asks engines for a token about each."""

    def __init__(self, sizes: Contexts, vocab_size: int) -> None:
        self._sizes = sizes
        self._prompts = Prompts(vocab_size)

    def draw(self, num: int) -> list[list[int]]:
        """New ones, with a token behind the last page: the last token is always computed."""
        length = self._sizes.context_tokens + self._sizes.new_tokens
        return [self._prompts.draw(length) for _ in range(num)]

    async def warm(self, *llms: AsyncLLM) -> None:
        """Ask each once: what is compiled and allocated at the first time counts for nothing."""
        for llm in llms:
            await ask_each(llm, self.draw(1))

    async def found(self, holder: AsyncLLM, finder: AsyncLLM, source: str) -> list[Answer]:
        """The answers of one engine about what the other has computed, all from `source`."""
        contexts = self.draw(2)
        await ask_each(holder, contexts)
        if source == "peer":
            await until_known(finder, holder)
        return await ask_each(finder, contexts, **{source: self._sizes.context_tokens})


async def measure(options: Options, sizes: Contexts, model: ModelConfig, tp: int) -> list[Figure]:
    """Pull contexts and compute others, in turns; then find them in an L2 that is shared."""
    asker = Asker(sizes, int(model["vocab_size"]))
    pulled: list[Answer] = []
    computed: list[Answer] = []
    shared: list[Answer] = []
    apart = sections_of(sizes, tp, {"pull": {}})
    async with two_engines(options, model, apart) as (holder, puller):
        await asker.warm(holder, puller)
        for _ in range(options.repeats):
            pulled += await asker.found(holder, puller, "peer")
            computed += await ask_each(puller, asker.draw(2))
        figures: dict[str, Any] = (await puller.stats())["host"]

    together = sections_of(sizes, tp, {"shared": True, "keep_s": 0.0})
    async with two_engines(options, model, together) as (holder, finder):
        await asker.warm(holder, finder)
        for _ in range(options.repeats):
            shared += await asker.found(holder, finder, "l2")

    pulled_ms, computed_ms = median_ttft_ms(pulled), median_ttft_ms(computed)
    return [
        Figure(
            name="TTFT, computed, of TTFT, pulled",
            value=computed_ms / pulled_ms,
            unit="1",
            min_value=options.bar(MIN_SPEEDUP),
        ),
        Figure(name="TTFT, pulled", value=pulled_ms, unit="ms"),
        Figure(name="TTFT, computed", value=computed_ms, unit="ms"),
        Figure(name="TTFT, found in one L2", value=median_ttft_ms(shared), unit="ms"),
        Figure(name="pages pulled", value=float(figures["peer_reads_ok"]), unit="pages"),
    ]


def main(options: Options, num_ranks: int) -> int:
    """Measure and report."""
    sizes, model = (TINY_CONTEXTS, DENSE_TINY) if options.is_tiny else (FULL_CONTEXTS, DENSE_L16)
    figures = asyncio.run(measure(options, sizes, model, num_ranks // 2))
    name = name_with_ranks("pull_engines", num_ranks)
    return options.report(
        name, {"ranks": num_ranks, "model": "dense_l16", **asdict(sizes)}, figures
    )


if __name__ == "__main__":
    run(lambda: main(*parse_options_of_two(__doc__)))
