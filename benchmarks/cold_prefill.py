"""Measure the time to the first token of long prompts of which nothing is cached.

    python -m benchmarks.cold_prefill

One request at a time through `AsyncLLM`, on Ray, in chunks, with backups to L2 beside them as in
`reload`. The floor is what the model's products take at the rates of a large matrix product and of
torch's attention, measured in the same run.
"""

import asyncio
from dataclasses import asdict

from benchmarks.device.ceilings import attention_tflops, matmul_tflops
from benchmarks.engine.engines import (
    DENSE_L16,
    DENSE_TINY,
    Options,
    Prompts,
    ask,
    expect_sources,
    median_ttft_ms,
    parse_options,
    ray_engine,
    settle,
)
from benchmarks.engine.workloads import FULL_CONTEXTS, MAX_COLD_MS, TINY_CONTEXTS, Contexts
from benchmarks.model.model_shapes import ModelConfig
from benchmarks.records.command_line import run
from benchmarks.records.record import Figure

PAGE_SIZE = 64


def floor_ms(options: Options, model: ModelConfig, num_tokens: int) -> float:
    """The least time for the prompt's matrix products and attention, without the logits."""
    hidden, layers = int(model["hidden_size"]), int(model["num_hidden_layers"])
    heads, head_dim = int(model["num_attention_heads"]), int(model["head_dim"])
    kv_size = int(model["num_key_value_heads"]) * head_dim
    layer_weights = hidden * (
        2 * heads * head_dim + 2 * kv_size + 3 * int(model["intermediate_size"])
    )

    product_flops = 2 * num_tokens * layers * layer_weights
    attention_flops = 2 * num_tokens**2 * layers * heads * head_dim
    matmul = matmul_tflops(options.device, 256 if options.is_tiny else 8192)
    attention = attention_tflops(options.device, num_tokens, heads, head_dim)
    return (product_flops / matmul + attention_flops / attention) / 1e9


async def measure(options: Options, sizes: Contexts, model: ModelConfig) -> list[Figure]:
    """The median over `repeats` prompts."""
    num_tokens = sizes.context_tokens + sizes.new_tokens
    prompts = Prompts(int(model["vocab_size"]))
    answers = []

    async with ray_engine(options, model, sizes.sections(PAGE_SIZE), "cold-prefill") as llm:
        for _ in range(1 + options.repeats):
            answer = await ask(llm.generate, prompts.draw(num_tokens), 1)
            expect_sources(answer)
            answers.append(answer)
            await settle(llm.stats)

    return [
        Figure(
            name=f"TTFT, {num_tokens} tokens, cold",
            value=median_ttft_ms(answers[1:]),
            unit="ms",
            max_value=options.bar(MAX_COLD_MS),
            baseline=floor_ms(options, model, num_tokens),
            baseline_name="matrix products and SDPA",
        )
    ]


def main(options: Options) -> int:
    """Measure and report."""
    sizes, model = (TINY_CONTEXTS, DENSE_TINY) if options.is_tiny else (FULL_CONTEXTS, DENSE_L16)
    figures = asyncio.run(measure(options, sizes, model))
    return options.report(
        "cold_prefill", {"model": "dense_l16", "page_size": PAGE_SIZE, **asdict(sizes)}, figures
    )


if __name__ == "__main__":
    run(lambda: main(parse_options(__doc__)))
