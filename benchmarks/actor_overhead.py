"""Measure what Ray actors and links cost, against the same engine in one process.

    python -m benchmarks.actor_overhead

Both serve the same streams of a mixture-of-experts model, one engine after the other. The client is
this process.
"""

import asyncio
from dataclasses import asdict, dataclass
from statistics import median

from benchmarks.engine.engines import (
    MOE_L12,
    MOE_TINY,
    Answer,
    Generate,
    Options,
    Prompts,
    ask_batch,
    dummy_config,
    engine_name,
    median_ttft_ms,
    parse_options,
)
from benchmarks.engine.workloads import FULL_BATCHES, TINY_BATCHES, Batches
from benchmarks.model.model_shapes import ModelConfig
from benchmarks.records.command_line import run
from benchmarks.records.record import Figure
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.testing.engine import in_process_engine

MAX_EXTRA_TTFT_MS = 3.0
MIN_THROUGHPUT_FRACTION = 0.97
_PAUSE_S = 0.2
"""The pause between rounds, for what the last one left in flight."""


@dataclass(frozen=True)
class Service:
    """How one engine served one number of streams: medians over the rounds."""

    ttft_ms: float
    tokens_per_s: float


async def serve(
    generate: Generate,
    options: Options,
    sizes: Batches,
    vocab_size: int,
    stream_counts: tuple[int, ...],
) -> dict[int, Service]:
    """Measure one engine after a warm-up, by number of streams."""
    prompts = Prompts(vocab_size)
    services = {}

    for num_streams in stream_counts:
        rounds = []
        for _ in range(1 + options.repeats):
            drawn = [prompts.draw(sizes.prompt_tokens) for _ in range(num_streams)]
            rounds.append(await ask_batch(generate, drawn, sizes.output_tokens))
            await asyncio.sleep(_PAUSE_S)
        services[num_streams] = Service(
            ttft_ms=median(median_ttft_ms(answers) for answers in rounds[1:]),
            tokens_per_s=median(tokens_per_s(answers) for answers in rounds[1:]),
        )
    return services


def tokens_per_s(answers: list[Answer]) -> float:
    """Output tokens of a round over its time."""
    began_s, ended_s = (
        min(answer.sent_s for answer in answers),
        max(answer.ended_s for answer in answers),
    )
    return sum(answer.num_tokens for answer in answers) / (ended_s - began_s)


async def measure(
    options: Options, sizes: Batches, model: ModelConfig, stream_counts: tuple[int, ...]
) -> list[Figure]:
    """Measure both engines, and what the actors add."""
    vocab_size = int(model["vocab_size"])
    async with dummy_config(options, model, sizes.sections(sizes.output_tokens)) as config:
        async with in_process_engine(config) as engine:
            alone = await serve(engine.client.generate, options, sizes, vocab_size, stream_counts)
        async with await AsyncLLM.start(config, name=engine_name("actor-overhead")) as llm:
            by_actors = await serve(llm.generate, options, sizes, vocab_size, stream_counts)

    return [
        figure
        for count in stream_counts
        for figure in compare(
            streams_of(count),
            by_actors[count],
            alone[count],
            "in process",
            max_ttft_ms=options.bar(alone[count].ttft_ms + MAX_EXTRA_TTFT_MS),
            min_tokens_per_s=options.bar(alone[count].tokens_per_s * MIN_THROUGHPUT_FRACTION),
        )
    ]


def streams_of(number: int) -> str:
    """How a figure names them."""
    return f"{number} streams" if number > 1 else "1 stream"


def compare(
    streams: str,
    measured: Service,
    baseline: Service,
    baseline_name: str,
    *,
    max_ttft_ms: float | None,
    min_tokens_per_s: float | None,
) -> list[Figure]:
    """The figures of one number of streams, beside a service without what is measured."""
    return [
        Figure(
            name=f"TTFT, {streams}",
            value=measured.ttft_ms,
            unit="ms",
            max_value=max_ttft_ms,
            baseline=baseline.ttft_ms,
            baseline_name=baseline_name,
        ),
        Figure(
            name=f"throughput, {streams}",
            value=measured.tokens_per_s,
            unit="tokens/s",
            min_value=min_tokens_per_s,
            baseline=baseline.tokens_per_s,
            baseline_name=baseline_name,
        ),
    ]


def main(options: Options) -> int:
    """Measure and report."""
    sizes, model, stream_counts = (
        (TINY_BATCHES, MOE_TINY, (1, 4))
        if options.is_tiny
        else (FULL_BATCHES, MOE_L12, (1, 32, 128))
    )
    figures = asyncio.run(measure(options, sizes, model, stream_counts))
    config = {name: value for name, value in asdict(sizes).items() if name != "max_ms"}
    return options.report("actor_overhead", {"model": "moe_l12", **config}, figures)


if __name__ == "__main__":
    run(lambda: main(parse_options(__doc__)))
