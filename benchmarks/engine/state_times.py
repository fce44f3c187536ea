"""Times of a model whose layers keep states: hits on long contexts, and decodes, through Ray."""

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.device.ceilings import memory_gbps
from benchmarks.engine.engines import (
    Answer,
    Options,
    Prompts,
    ask_batch,
    engine_sections,
    median_ttft_ms,
    ray_engine,
    settle,
    steady_tpot_ms,
)
from benchmarks.engine.workloads import Contexts
from benchmarks.model.model_shapes import SHAPES, ModelConfig, write_shape
from benchmarks.records.record import Figure
from benchmarks.reload import Asker
from raydix.kernels.pages.page_codec import Codec
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.config.kv_layout import KvLayout
from raydix.runtime.model.checkpoint.checkpoint_config import read_checkpoint_config
from raydix.runtime.model.spec.kv_groups import derive_kv_groups, make_kv_layout

MAX_HIT_RATIO = {"l1": 0.15, "l2": 0.25}
"""The time to the first token of a hit over that of computing, by tier."""
MIN_SPEED_FRACTION = 0.8
"""The part of the memory's speed that decodes reach at least."""
ELEMENT_BYTES = 2

HYBRID_L12: ModelConfig = SHAPES["qwen3.6-35b-a3b-l12"]
HYBRID_TINY: ModelConfig = {
    **HYBRID_L12,
    "vocab_size": 256,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Long contexts that are asked about in turn, and then a batch that decodes."""

    contexts: Contexts
    page_size: int
    decode_l1_tokens: int
    """L1 of an engine whose states suffice for all of a batch at once."""
    batch: int
    prompt_tokens: int
    output_tokens: int

    @property
    def mean_context(self) -> int:
        """Tokens of a decoding request's context, on the average."""
        return self.prompt_tokens + self.output_tokens // 2


FULL_LOAD = Load(
    contexts=Contexts(context_tokens=32_768, l1_tokens=262_144, num_contexts=10, l2_bytes=8 << 30),
    page_size=64,
    decode_l1_tokens=1_310_720,
    batch=64,
    prompt_tokens=256,
    output_tokens=128,
)
TINY_LOAD = Load(
    contexts=Contexts(
        context_tokens=256, l1_tokens=1024, num_contexts=6, l2_bytes=32 << 20, chunk_tokens=128
    ),
    page_size=16,
    decode_l1_tokens=16_384,
    batch=4,
    prompt_tokens=32,
    output_tokens=16,
)


def layout_of(model: ModelConfig, page_size: int, dtype: str) -> KvLayout:
    """The pages of the model."""
    with TemporaryDirectory(prefix="raydix-benchmark-") as folder:
        config = read_checkpoint_config(write_shape(model, Path(folder)))
    groups = derive_kv_groups(config.spec.layers)
    return make_kv_layout(groups, page_size=page_size, dtype=dtype, codec=Codec.NONE)


def weight_elements(model: ModelConfig, batch: int) -> float:
    """Elements of the weights that a step of so many tokens reads, if its experts are spread."""
    sizes = {name: value for name, value in model.items() if isinstance(value, int)}
    hidden, head_dim = sizes["hidden_size"], sizes["head_dim"]
    # A gate for each query; what comes out of both goes back.
    attention = hidden * head_dim * (3 * sizes["num_attention_heads"])
    attention += hidden * head_dim * 2 * sizes["num_key_value_heads"]

    num_values = sizes["linear_num_value_heads"]
    keys = sizes["linear_num_key_heads"] * sizes["linear_key_head_dim"]
    values = num_values * sizes["linear_value_head_dim"]
    states = hidden * (2 * keys + 3 * values + 2 * num_values)

    num_experts = sizes["num_experts"]
    experts_used = num_experts * (1 - (1 - sizes["num_experts_per_tok"] / num_experts) ** batch)
    expert_rows = experts_used * sizes["moe_intermediate_size"]
    expert_rows += sizes["shared_expert_intermediate_size"]
    mlp = hidden * (3 * expert_rows + num_experts)

    num_layers = sizes["num_hidden_layers"]
    num_full = num_layers // sizes["full_attention_interval"]
    mixers = num_full * attention + (num_layers - num_full) * states
    return mixers + num_layers * mlp + hidden * sizes["vocab_size"]


def floor_ms(model: ModelConfig, layout: KvLayout, load: Load, bandwidth_gbps: float) -> float:
    """The least time for a step's bytes: weights, KV, and states, which are read and written."""
    weights = ELEMENT_BYTES * weight_elements(model, load.batch)
    kept = load.batch * (2 * layout.state_bytes + load.mean_context * layout.token_bytes)
    return (weights + kept) / bandwidth_gbps / 1e6


async def measure_times(options: Options) -> list[Figure]:
    """Hits in both tiers beside computing, then decodes beside the memory's speed."""
    load, model = (TINY_LOAD, HYBRID_TINY) if options.is_tiny else (FULL_LOAD, HYBRID_L12)
    bandwidth_gbps = memory_gbps(options.device, 1 << (20 if options.is_tiny else 31))
    async with ray_engine(options, model, _sections(load), "states") as llm:
        hits = await _measure_hits(options, llm, load.contexts, int(model["vocab_size"]))
    async with ray_engine(options, model, _decode_sections(load), "decoded-states") as llm:
        tpot_ms = await _measure_decode(options, llm, load, int(model["vocab_size"]))

    layout = layout_of(model, load.page_size, "bfloat16")
    floor = floor_ms(model, layout, load, bandwidth_gbps)
    return [
        *hits,
        Figure(
            name=f"TPOT, batch {load.batch}",
            value=tpot_ms,
            unit="ms",
            baseline=floor,
            baseline_name="weights, states and KV at the memory's speed",
        ),
        Figure(
            name=f"memory's speed reached, batch {load.batch}",
            value=floor / tpot_ms,
            unit="1",
            min_value=options.bar(MIN_SPEED_FRACTION),
        ),
    ]


def _sections(load: Load) -> dict[str, Any]:
    """An engine whose L1 holds most of the contexts, and whose L2 all of them."""
    contexts = load.contexts
    sections = engine_sections(
        max_model_len=2 * contexts.context_tokens,
        page_size=load.page_size,
        l1_pages=contexts.l1_tokens // load.page_size,
        l2_bytes=contexts.l2_bytes,
        chunk_tokens=contexts.chunk_tokens,
        max_running_requests=load.batch,
    )
    # Asked is what a hit takes, not whether it is predicted to be worth its load.
    sections["cache"]["load"] = "always"
    return sections


def _decode_sections(load: Load) -> dict[str, Any]:
    return engine_sections(
        max_model_len=2 * load.contexts.context_tokens,
        page_size=load.page_size,
        l1_pages=load.decode_l1_tokens // load.page_size,
        l2_bytes=None,
        chunk_tokens=load.contexts.chunk_tokens,
        max_running_requests=load.batch,
    )


async def _measure_hits(
    options: Options, llm: AsyncLLM, contexts: Contexts, vocab_size: int
) -> list[Figure]:
    num_tokens = contexts.context_tokens
    asker = Asker(llm.generate, llm.stats, contexts, vocab_size)
    cold = (await asker.ask_each())[1:]
    # A context that is asked about for the second time comes from L2, as L1 holds fewer of them.
    await asker.ask_each(l2=num_tokens)
    from_l2: list[Answer] = []
    for _ in range(options.repeats):
        from_l2 += await asker.ask_each(l2=num_tokens)
    from_l1 = await asker.ask_each(times=2, l1=num_tokens)

    cold_ms = median_ttft_ms(cold)
    figures = [Figure(name=f"TTFT, {num_tokens} tokens, computed", value=cold_ms, unit="ms")]
    for tier, answers in (("l1", from_l1), ("l2", from_l2)):
        hit_ms = median_ttft_ms(answers)
        figures += [
            Figure(name=f"TTFT, {num_tokens} tokens, {tier.upper()} hit", value=hit_ms, unit="ms"),
            Figure(
                name=f"TTFT, {num_tokens} tokens, {tier.upper()} hit over computed",
                value=hit_ms / cold_ms,
                unit="1",
                max_value=options.bar(MAX_HIT_RATIO[tier]),
            ),
        ]
    return figures


async def _measure_decode(options: Options, llm: AsyncLLM, load: Load, vocab_size: int) -> float:
    """Median time per token of the steady batch, over rounds after one that warms up."""
    prompts = Prompts(vocab_size)
    times_ms = []
    for _ in range(1 + options.repeats):
        drawn = [prompts.draw(load.prompt_tokens) for _ in range(load.batch)]
        answers = await ask_batch(llm.generate, drawn, load.output_tokens)
        times_ms.append(steady_tpot_ms(answers))
        await settle(llm.stats)
    return median(times_ms[1:])
