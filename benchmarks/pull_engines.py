"""Times to the first token of long contexts that another engine's L2 holds, and of new ones.

    python -m benchmarks.pull_engines       # two GPUs of one host, an engine on each

One engine computes contexts; the other one, which has never seen them, pulls them over TCP on the
loopback, one request at a time. Beside it the other engine computes as many new ones. Through
`AsyncLLM`, on Ray.
"""

import asyncio
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
    parse_options,
    settle,
)
from benchmarks.engine.workloads import FULL_CONTEXTS, TINY_CONTEXTS, Contexts
from benchmarks.model.model_shapes import ModelConfig
from benchmarks.records.command_line import run
from benchmarks.records.record import Figure
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


async def measure(options: Options, sizes: Contexts, model: ModelConfig) -> list[Figure]:
    """Pull contexts and compute others, in turns."""
    sections = sizes.sections(_PAGE_SIZE)
    sections["cache"]["load"] = "always"
    sections["cache"]["prefetch"] = {"strategy": "wait_complete"}
    sections["cache"]["l2"] |= {"pull": {}}
    prompts = Prompts(int(model["vocab_size"]))
    # With a token behind the last page: a prompt of whole pages would compute its last one.
    length = sizes.context_tokens + sizes.new_tokens

    pulled: list[Answer] = []
    computed: list[Answer] = []
    async with (
        dummy_config(options, model, sections) as config,
        await AsyncLLM.start(config, name=engine_name("holder")) as holder,
        await AsyncLLM.start(config, name=engine_name("puller")) as puller,
    ):
        # What is compiled and allocated at the first time counts for neither.
        for llm in (holder, puller):
            await ask_each(llm, [prompts.draw(length)])
        for _ in range(options.repeats):
            contexts = [prompts.draw(length) for _ in range(2)]
            await ask_each(holder, contexts)
            await until_known(puller, holder)
            pulled += await ask_each(puller, contexts, peer=sizes.context_tokens)
            computed += await ask_each(puller, [prompts.draw(length) for _ in range(2)])
        figures: dict[str, Any] = (await puller.stats())["host"]

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
        Figure(name="pages pulled", value=float(figures["peer_reads_ok"]), unit="pages"),
    ]


def main(options: Options) -> int:
    """Measure and report."""
    sizes, model = (TINY_CONTEXTS, DENSE_TINY) if options.is_tiny else (FULL_CONTEXTS, DENSE_L16)
    figures = asyncio.run(measure(options, sizes, model))
    return options.report("pull_engines", {"model": "dense_l16", **asdict(sizes)}, figures)


if __name__ == "__main__":
    run(lambda: main(parse_options(__doc__, num_gpus=2)))
