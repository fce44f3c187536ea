"""Measure what HTTP costs, against `AsyncLLM` on the same engine.

    python -m benchmarks.http_overhead

All streams are read token by token. The server is a process of its own, as `raydix serve --http`
is; the client, this process, speaks plain HTTP over sockets, so that no client library is measured.
Rounds of the two alternate.
"""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict
from statistics import median

from benchmarks.actor_overhead import Service, compare, streams_of, tokens_per_s
from benchmarks.engines import (
    DENSE_L16,
    DENSE_TINY,
    Answer,
    ModelConfig,
    Options,
    Prompts,
    ask,
    dummy_config,
    median_ttft_ms,
    parse_options,
)
from benchmarks.http_client import EVENT, stream_parts
from benchmarks.record import Figure
from benchmarks.workloads import FULL_BATCHES, TINY_BATCHES, Batches
from raydix.runtime.api.client import AsyncLLM

ENGINE = "http-overhead"
MAX_EXTRA_TTFT_MS = 5.0
MIN_THROUGHPUT_FRACTION = 0.95
_PAUSE_S = 0.2
"""The pause between rounds, for what the last one left in flight."""
_TAIL_BYTES = 4096
"""More than the last event has."""

Ask = Callable[[list[int], int], Awaitable[Answer]]
"""Stream an answer of so many tokens to a prompt."""


async def ask_http(port: int, prompt: list[int], num_tokens: int) -> Answer:
    """Stream one completion over a connection of its own."""
    body = {
        "prompt": prompt,
        "max_tokens": num_tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    sent_s = time.monotonic()
    # Events are counted as they come and not parsed: at full speed they are too many for Python.
    arrivals_s: list[float] = []
    tail = b""
    async with contextlib.aclosing(stream_parts(port, body)) as parts:
        async for part in parts:
            arrivals_s += [time.monotonic()] * part.count(EVENT)
            tail = (tail + part)[-_TAIL_BYTES:]

    # The last one tells the usage.
    last = tail.rpartition(EVENT)[2].partition(b"\n")[0]
    usage = json.loads(b"{" + last)["usage"]
    return Answer(
        sent_s=sent_s,
        first_s=arrivals_s[0],
        ended_s=arrivals_s[-1],
        arrivals_s=tuple(arrivals_s),
        num_tokens=usage["completion_tokens"],
        tokens_by_source=usage["prompt_tokens_details"]["cached_tokens_by_source"],
    )


@contextlib.asynccontextmanager
async def http_front(engine: str) -> AsyncIterator[int]:
    """A server for the running engine of this name; yields its port."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.http_front", engine),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ,
    )
    assert process.stdin is not None, "both are pipes"
    assert process.stdout is not None, "both are pipes"
    try:
        yield int(await process.stdout.readline())
    finally:
        process.stdin.close()
        await process.wait()


async def measure(
    options: Options, sizes: Batches, model: ModelConfig, stream_counts: tuple[int, ...]
) -> list[Figure]:
    """Both ways to ask, by number of streams."""
    prompts = Prompts(int(model["vocab_size"]))
    figures = []
    async with (
        dummy_config(options, model, sizes.sections(sizes.output_tokens)) as config,
        await AsyncLLM.start(config, name=ENGINE) as llm,
        http_front(ENGINE) as port,
    ):
        ways: dict[str, Ask] = {
            "direct": lambda prompt, num_tokens: ask(llm.generate, prompt, num_tokens),
            "http": lambda prompt, num_tokens: ask_http(port, prompt, num_tokens),
        }
        for num_streams in stream_counts:
            services = await _serve(ways, options, sizes, prompts, num_streams)
            direct = services["direct"]
            # The time to the first token has a bar for one stream alone.
            max_ttft_ms = direct.ttft_ms + MAX_EXTRA_TTFT_MS
            figures += compare(
                streams_of(num_streams),
                services["http"],
                direct,
                "AsyncLLM",
                max_ttft_ms=options.bar(max_ttft_ms) if num_streams == 1 else None,
                min_tokens_per_s=options.bar(direct.tokens_per_s * MIN_THROUGHPUT_FRACTION),
            )
    return figures


async def _serve(
    ways: dict[str, Ask], options: Options, sizes: Batches, prompts: Prompts, num_streams: int
) -> dict[str, Service]:
    """Medians over the rounds after a warm-up."""
    rounds: defaultdict[str, list[list[Answer]]] = defaultdict(list)
    for _ in range(1 + options.repeats):
        for name, way in ways.items():
            drawn = [prompts.draw(sizes.prompt_tokens) for _ in range(num_streams)]
            asking = [way(prompt, sizes.output_tokens) for prompt in drawn]
            rounds[name].append(await asyncio.gather(*asking))
            await asyncio.sleep(_PAUSE_S)

    return {
        name: Service(
            ttft_ms=median(median_ttft_ms(answers) for answers in own[1:]),
            tokens_per_s=median(tokens_per_s(answers) for answers in own[1:]),
        )
        for name, own in rounds.items()
    }


def main(options: Options) -> int:
    """Measure and report."""
    sizes, model, stream_counts = (
        (TINY_BATCHES, DENSE_TINY, (1, 4))
        if options.is_tiny
        else (FULL_BATCHES, DENSE_L16, (1, 32, 128))
    )
    figures = asyncio.run(measure(options, sizes, model, stream_counts))
    config = {name: value for name, value in asdict(sizes).items() if name != "max_ms"}
    return options.report("http_overhead", {"model": "dense_l16", **config}, figures)


if __name__ == "__main__":
    sys.exit(main(parse_options(__doc__)))
