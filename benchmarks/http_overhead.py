"""Measure what HTTP costs, against `AsyncLLM` on the same engine.

    python -m benchmarks.http_overhead

All streams are read token by token. The server is a process of its own, as `raydix serve --http`
is, and so is its client, which speaks plain HTTP over sockets: neither a client library nor a
client that shares its core is measured. `AsyncLLM` is in this process. Rounds of the two alternate.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict
from functools import partial
from statistics import median

from benchmarks.actor_overhead import Service, compare, streams_of, tokens_per_s
from benchmarks.engine.engines import (
    DENSE_L16,
    DENSE_TINY,
    Answer,
    Options,
    Prompts,
    ask,
    dummy_config,
    engine_name,
    median_ttft_ms,
    parse_options,
)
from benchmarks.engine.workloads import FULL_BATCHES, TINY_BATCHES, Batches
from benchmarks.http.reader import Stream
from benchmarks.model.model_shapes import ModelConfig
from benchmarks.records.command_line import run
from benchmarks.records.record import Figure
from raydix.runtime.api.client import AsyncLLM

ENGINE = engine_name("http-overhead")
MAX_EXTRA_TTFT_MS = 5.0
MIN_THROUGHPUT_FRACTION = 0.95
_PAUSE_S = 0.2
"""The pause between rounds, for what the last one left in flight."""
_LINE_BYTES = 64 << 20
"""More than what a round tells."""

AskAll = Callable[[list[list[int]], int], Awaitable[list[Answer]]]
"""Stream answers of so many tokens to all prompts at once."""


class HttpReader:
    """A client of an HTTP server, in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ask_all(self, prompts: list[list[int]], num_tokens: int) -> list[Answer]:
        """Stream one completion per prompt, over a connection of its own."""
        common = {
            "max_tokens": num_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        bodies = [{"prompt": prompt, **common} for prompt in prompts]
        assert self._process.stdin is not None, "both are pipes"
        assert self._process.stdout is not None, "both are pipes"
        self._process.stdin.write(json.dumps(bodies).encode() + b"\n")
        await self._process.stdin.drain()
        line = await self._process.stdout.readline()
        return [_answer(Stream(**stream)) for stream in json.loads(line)]


def _answer(stream: Stream) -> Answer:
    # The last event tells the usage.
    tokens_s = stream.arrivals_s[:-1]
    return Answer(
        sent_s=stream.sent_s,
        first_s=tokens_s[0],
        ended_s=tokens_s[-1],
        arrivals_s=tuple(tokens_s),
        num_tokens=stream.usage["completion_tokens"],
        tokens_by_source=stream.usage["prompt_tokens_details"]["cached_tokens_by_source"],
    )


@contextlib.asynccontextmanager
async def http_reader(port: int) -> AsyncIterator[HttpReader]:
    """A client of the server at this port."""
    async with _process("benchmarks.http.reader", str(port)) as process:
        yield HttpReader(process)


@contextlib.asynccontextmanager
async def http_front(engine: str) -> AsyncIterator[int]:
    """A server for the running engine of this name; yields its port."""
    async with _process("benchmarks.http.front", engine) as process:
        assert process.stdout is not None, "it is a pipe"
        yield int(await process.stdout.readline())


@contextlib.asynccontextmanager
async def _process(module: str, argument: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A module as a process, which ends with its standard input."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, argument),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ,
        limit=_LINE_BYTES,
    )
    try:
        yield process
    finally:
        assert process.stdin is not None, "it is a pipe"
        process.stdin.close()
        await process.wait()


async def measure(
    options: Options, sizes: Batches, model: ModelConfig, stream_counts: tuple[int, ...]
) -> list[Figure]:
    """Measure both ways to ask, by number of streams."""
    prompts = Prompts(int(model["vocab_size"]))
    figures = []
    async with (
        dummy_config(options, model, sizes.sections(sizes.output_tokens)) as config,
        await AsyncLLM.start(config, name=ENGINE) as llm,
        http_front(ENGINE) as port,
        http_reader(port) as reader,
    ):
        ways: dict[str, AskAll] = {
            "direct": partial(ask_directly, llm),
            "http": reader.ask_all,
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


async def ask_directly(llm: AsyncLLM, prompts: list[list[int]], num_tokens: int) -> list[Answer]:
    """The same by `AsyncLLM`."""
    asking = [ask(llm.generate, prompt, num_tokens) for prompt in prompts]
    return list(await asyncio.gather(*asking))


async def _serve(
    ways: dict[str, AskAll], options: Options, sizes: Batches, prompts: Prompts, num_streams: int
) -> dict[str, Service]:
    """Medians over the rounds after a warm-up."""
    rounds: defaultdict[str, list[list[Answer]]] = defaultdict(list)
    for _ in range(1 + options.repeats):
        for name, way in ways.items():
            drawn = [prompts.draw(sizes.prompt_tokens) for _ in range(num_streams)]
            rounds[name].append(await way(drawn, sizes.output_tokens))
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
    run(lambda: main(parse_options(__doc__)))
