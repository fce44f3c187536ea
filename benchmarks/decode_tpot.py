"""Measure the time per output token of a mixture-of-experts model at several batch sizes.

    python -m benchmarks.decode_tpot

Every request of a batch is sent at once, through `AsyncLLM`, on Ray. The time per token is that of
the steady batch: one stream is watched from when the last request has its first token until the
first request ends. The plain mean over the requests, which counts the prefill of those that came
later, is shown for information.
The floor is one pass over the weights that a step needs and over its KV, at the bandwidth of a copy
within the device, measured in the same run.

At some of the batch sizes each round is repeated with requests that sample: their time is compared
with that of the greedy ones, which alternate with them. A greedy stream of random weights soon
repeats a token, and at batch 1 reads the same experts with each step, where a sampled stream reads
others: a temperature near zero tells the two effects apart.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import mean, median

from benchmarks.device.ceilings import memory_gbps
from benchmarks.engine.engines import (
    GREEDY,
    MOE_L12,
    MOE_TINY,
    Answer,
    Options,
    Prompts,
    ask_batch,
    parse_options,
    ray_engine,
    settle,
    steady_tpot_ms,
)
from benchmarks.engine.workloads import FULL_BATCHES, TINY_BATCHES, Batches
from benchmarks.model.model_shapes import ModelConfig
from benchmarks.records.command_line import run
from benchmarks.records.record import Figure
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.api.sampling_params import SamplingParams

ELEMENT_BYTES = 2


@dataclass(frozen=True, kw_only=True)
class Mode:
    """How requests sample, and how much longer than greedy ones their tokens may take."""

    name: str
    sampling: SamplingParams
    max_ratio: float


MODES = (
    # Samples, and takes what greedy requests take: the same experts are read.
    Mode(name="temperature 0.0001", sampling=SamplingParams(temperature=1e-4), max_ratio=1.03),
    Mode(name="temperature 1", sampling=SamplingParams(temperature=1.0), max_ratio=1.03),
    Mode(
        name="temperature 1, top-p 0.95, top-k 50",
        sampling=SamplingParams(temperature=1.0, top_p=0.95, top_k=50),
        max_ratio=1.05,
    ),
)


def floor_ms(model: ModelConfig, batch: int, context_tokens: int, bandwidth_gbps: float) -> float:
    """The least time for a step's bytes."""
    hidden, layers = int(model["hidden_size"]), int(model["num_hidden_layers"])
    query_size = int(model["num_attention_heads"]) * int(model["head_dim"])
    kv_size = int(model["num_key_value_heads"]) * int(model["head_dim"])

    # The least if the router spreads the batch evenly over the experts.
    num_experts = int(model["num_experts"])
    experts_used = num_experts * (
        1 - (1 - int(model["num_experts_per_tok"]) / num_experts) ** batch
    )
    expert_weights = 3 * hidden * int(model["moe_intermediate_size"])

    layer_elements = (
        hidden * (2 * query_size + 2 * kv_size + num_experts) + experts_used * expert_weights
    )
    kv_elements = 2 * kv_size * context_tokens * batch
    elements = layers * (layer_elements + kv_elements) + hidden * int(model["vocab_size"])
    return ELEMENT_BYTES * elements / bandwidth_gbps / 1e6


async def measure(options: Options, sizes: Batches, model: ModelConfig) -> list[Figure]:
    """Medians over `repeats` rounds of each batch size, after one that warms up."""
    figures = []
    prompts = Prompts(int(model["vocab_size"]))
    bandwidth_gbps = memory_gbps(options.device, 1 << (20 if options.is_tiny else 31))

    async with ray_engine(
        options, model, sizes.sections(sizes.output_tokens), "decode-tpot"
    ) as llm:
        for batch, max_ms in sizes.max_ms.items():
            modes = MODES if batch in sizes.sampled else ()
            rounds = await play_rounds(llm, options, sizes, prompts, batch, modes)

            measured = rounds["greedy"][1:]
            context_tokens = sizes.prompt_tokens + sizes.output_tokens // 2
            figures += [
                Figure(
                    name=f"TPOT, batch {batch}",
                    value=median(steady_tpot_ms(answers) for answers in measured),
                    unit="ms",
                    max_value=options.bar(max_ms),
                    baseline=floor_ms(model, batch, context_tokens, bandwidth_gbps),
                    baseline_name="weights and KV at the memory's speed",
                ),
                Figure(
                    name=f"mean TPOT with the prefill of later requests, batch {batch}",
                    value=median(
                        mean(answer.tpot_ms for answer in answers) for answers in measured
                    ),
                    unit="ms",
                ),
                *(
                    sampled_figure(mode, batch, rounds[mode.name][1:], measured, options)
                    for mode in modes
                ),
            ]
    return figures


async def play_rounds(
    llm: AsyncLLM,
    options: Options,
    sizes: Batches,
    prompts: Prompts,
    batch: int,
    modes: Sequence[Mode],
) -> dict[str, list[list[Answer]]]:
    """The answers of each round, by mode: greedy requests and those that sample alternate."""
    samplings = {"greedy": GREEDY} | {mode.name: mode.sampling for mode in modes}
    rounds: dict[str, list[list[Answer]]] = {name: [] for name in samplings}

    for _ in range(1 + options.repeats):
        for name, sampling in samplings.items():
            drawn = [prompts.draw(sizes.prompt_tokens) for _ in range(batch)]
            answers = await ask_batch(llm.generate, drawn, sizes.output_tokens, sampling)
            rounds[name].append(answers)
            await settle(llm.stats)
    return rounds


def sampled_figure(
    mode: Mode, batch: int, rounds: list[list[Answer]], greedy: list[list[Answer]], options: Options
) -> Figure:
    """The time per token of requests that sample over that of greedy ones."""
    sampled_ms, greedy_ms = (median(map(steady_tpot_ms, each)) for each in (rounds, greedy))
    return Figure(
        name=f"TPOT over greedy, batch {batch}, {mode.name}",
        value=sampled_ms / greedy_ms,
        unit="1",
        max_value=options.bar(mode.max_ratio),
    )


def main(options: Options) -> int:
    """Measure and report."""
    sizes, model = (TINY_BATCHES, MOE_TINY) if options.is_tiny else (FULL_BATCHES, MOE_L12)
    figures = asyncio.run(measure(options, sizes, model))
    config = {
        name: value for name, value in asdict(sizes).items() if name not in ("max_ms", "sampled")
    }
    return options.report("decode_tpot", {"model": "moe_l12", **config}, figures)


if __name__ == "__main__":
    run(lambda: main(parse_options(__doc__)))
