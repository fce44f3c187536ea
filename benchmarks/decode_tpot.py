"""Measure the time per output token of a mixture-of-experts model at several batch sizes.

    python -m benchmarks.decode_tpot

Every request of a batch is sent at once. The time per token is that of the steady batch: one stream is watched from
when the last request has its first token until the first request ends. The plain mean over the requests, which counts
the prefill of those that came later, is shown for information. The floor is one pass over the weights that a step needs
and over its KV, at the bandwidth of a copy within the device, measured in the same run.
"""

import asyncio
import sys
from dataclasses import asdict, dataclass
from statistics import mean, median
from typing import Any

from benchmarks.ceilings import memory_gbps
from benchmarks.engines import (
    MOE_L12,
    MOE_TINY,
    Answer,
    Generate,
    ModelConfig,
    Options,
    Prompts,
    ask,
    dummy_engine,
    parse_options,
)
from benchmarks.record import Figure
from raydix.runtime.sampling_params import OutputKind

ELEMENT_BYTES = 2


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Of the load. `max_ms`: by batch size."""

    max_ms: dict[int, float]
    prompt_tokens: int = 256
    output_tokens: int = 128
    chunk_tokens: int = 8192
    page_size: int = 64
    max_model_len: int = 16_384

    def sections(self, output_tokens: int) -> dict[str, Any]:
        """The configuration, but for its model, of an engine that holds the largest batch at this length."""
        largest = max(self.max_ms)
        pages_each = (self.prompt_tokens + output_tokens) // self.page_size + 2
        return {
            "model": {"max_model_len": self.max_model_len},
            "cache": {"page_size": self.page_size, "l1": {"num_pages": 2 * largest * pages_each}, "l2": None},
            "scheduler": {"chunked_prefill_tokens": self.chunk_tokens, "max_running_requests": largest},
        }


FULL = Sizes(max_ms={1: 1.2, 8: 2.1, 32: 3.8, 64: 4.3, 128: 4.9})
TINY = Sizes(
    max_ms={1: 1.0, 4: 1.0}, prompt_tokens=32, output_tokens=16, chunk_tokens=128, page_size=16, max_model_len=128
)


async def ask_batch(generate: Generate, prompts: list[list[int]], num_tokens: int) -> list[Answer]:
    """All at once. Only the first is streamed token by token, so that reading costs the engine's process little."""
    kinds = [OutputKind.DELTA] + [OutputKind.FINAL] * (len(prompts) - 1)
    asking = [ask(generate, prompt, num_tokens, kind) for prompt, kind in zip(prompts, kinds, strict=True)]
    return list(await asyncio.gather(*asking))


def steady_tpot_ms(answers: list[Answer]) -> float:
    """Time between two tokens of the first stream while every request generates."""
    start_s, stop_s = max(answer.first_s for answer in answers), min(answer.ended_s for answer in answers)
    arrivals_s = [arrival_s for arrival_s in answers[0].arrivals_s if start_s <= arrival_s <= stop_s]
    if len(arrivals_s) < 2:
        raise RuntimeError("the requests did not generate at the same time; measure longer outputs")
    return 1e3 * (arrivals_s[-1] - arrivals_s[0]) / (len(arrivals_s) - 1)


def floor_ms(model: ModelConfig, batch: int, context_tokens: int, bandwidth_gbps: float) -> float:
    """The least time for a step's bytes, if the router spreads the batch evenly over the experts."""
    hidden, layers, head_dim = int(model["hidden_size"]), int(model["num_hidden_layers"]), int(model["head_dim"])
    query_size, kv_size = int(model["num_attention_heads"]) * head_dim, int(model["num_key_value_heads"]) * head_dim
    num_experts = int(model["num_experts"])
    experts_used = num_experts * (1 - (1 - int(model["num_experts_per_tok"]) / num_experts) ** batch)
    expert_weights = 3 * hidden * int(model["moe_intermediate_size"])
    layer_elements = hidden * (2 * query_size + 2 * kv_size + num_experts) + experts_used * expert_weights
    kv_elements = 2 * kv_size * context_tokens * batch
    elements = layers * (layer_elements + kv_elements) + hidden * int(model["vocab_size"])
    return ELEMENT_BYTES * elements / bandwidth_gbps / 1e6


async def measure(options: Options, sizes: Sizes, model: ModelConfig) -> list[Figure]:
    """Medians over `repeats` rounds of each batch size, after one that warms up."""
    figures = []
    prompts = Prompts(int(model["vocab_size"]))
    bandwidth_gbps = memory_gbps(options.device, 1 << (20 if options.is_tiny else 31))
    async with dummy_engine(options, model, sizes.sections(sizes.output_tokens)) as engine:
        for batch, max_ms in sizes.max_ms.items():
            rounds = []
            for _ in range(1 + options.repeats):
                drawn = [prompts.draw(sizes.prompt_tokens) for _ in range(batch)]
                rounds.append(await ask_batch(engine.client.generate, drawn, sizes.output_tokens))
                await engine.settle()
            measured = rounds[1:]
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
                    value=median(mean(answer.tpot_ms for answer in answers) for answers in measured),
                    unit="ms",
                ),
            ]
    return figures


def main(options: Options) -> int:
    """Measure and report."""
    sizes, model = (TINY, MOE_TINY) if options.is_tiny else (FULL, MOE_L12)
    figures = asyncio.run(measure(options, sizes, model))
    config = {name: value for name, value in asdict(sizes).items() if name != "max_ms"}
    return options.report("decode_tpot", {"model": "moe_l12", **config}, figures)


if __name__ == "__main__":
    sys.exit(main(parse_options(__doc__)))
