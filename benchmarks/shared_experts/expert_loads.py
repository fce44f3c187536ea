"""What the benchmark of shared experts asks of its engines, and how large they are for it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.engine.engines import engine_sections
from benchmarks.model.model_shapes import SHAPES, ModelConfig

BIASED_TINY: ModelConfig = {
    **SHAPES["biased_moe_l12"],
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}


def on_ranks(
    num_ranks: int, sections: Mapping[str, Any], *, ep: int, experts: Mapping[str, Any]
) -> dict[str, Any]:
    """`sections` for ranks with a lane of their own each; `experts`: that section, if shared."""
    parallel = {"parallel": {"dp": num_ranks, "ep": ep}}
    return {**sections, **parallel, **({"experts": dict(experts)} if ep > 1 else {})}


@dataclass(frozen=True, kw_only=True)
class BatchLoad:
    """Whole batches that decode, long prompts, and the pages that they take. There is L1 alone."""

    batch: int
    """Streams that each rank generates for."""
    prompt_tokens: int
    """The length of the shortest prompt of a batch; the others have up to a page more."""
    output_tokens: int
    moving_output_tokens: int
    """The length of streams beside which experts move."""
    rebalance_steps: int
    """The steps after which experts begin to move."""
    load_interval_steps: int
    """Reports of their load; some come while long prompts are computed."""
    prompt_rounds: int
    """The rounds of prompts in which experts move once more: where they should be for prompts is
    another question than for decoding, which reads weights rather than computes.
    """
    long_prompts: int
    """The number of long prompts for each rank."""
    long_tokens: int
    chunk_tokens: int
    page_size: int
    l1_tokens: int

    @property
    def sections(self) -> dict[str, Any]:
        """The sections of the configuration, but for the model and the ranks."""
        longest = max(self.long_tokens, self.prompt_tokens + self.moving_output_tokens)
        return engine_sections(
            max_model_len=longest + self.page_size,
            page_size=self.page_size,
            l1_pages=self.l1_tokens // self.page_size,
            l2_bytes=None,
            chunk_tokens=self.chunk_tokens,
            # Lanes need not get equally many of what comes together.
            max_running_requests=self.batch + self.batch // 8,
        )


@dataclass(frozen=True, kw_only=True)
class StreamLoad:
    """Contexts that are asked about twice by so many streams at a time, then longer answers.

    The contexts fit neither in L1 nor in L2.
    """

    num_streams: int
    num_contexts: int
    context_tokens: int
    new_tokens: int
    answer_tokens: int
    long_answer_tokens: int
    chunk_tokens: int
    page_size: int
    l1_tokens: int
    l2_tokens: int
    l3_bytes: int

    def sections(self, l3_folder: str, num_ranks: int, token_bytes: int) -> dict[str, Any]:
        """The sections of the configuration, but for the model and the ranks."""
        longest = self.context_tokens + self.new_tokens + self.long_answer_tokens
        sections = engine_sections(
            max_model_len=longest + self.page_size,
            page_size=self.page_size,
            l1_pages=self.l1_tokens // self.page_size,
            l2_bytes=self.l2_tokens * token_bytes,
            chunk_tokens=self.chunk_tokens,
            max_running_requests=self.num_streams // num_ranks + self.num_streams // 8,
        )
        sections["cache"] |= {
            "l3": {"backend": "file", "path": l3_folder, "max_bytes": self.l3_bytes},
            "prefetch": {"strategy": "wait_complete", "min_tokens": 1},
        }
        return sections


FULL_BATCHES = BatchLoad(
    batch=64,
    prompt_tokens=256,
    output_tokens=192,
    moving_output_tokens=1000,
    rebalance_steps=320,
    load_interval_steps=8,
    prompt_rounds=32,
    long_prompts=16,
    long_tokens=8192,
    chunk_tokens=16_384,
    page_size=64,
    l1_tokens=163_840,
)
TINY_BATCHES = BatchLoad(
    batch=4,
    prompt_tokens=16,
    output_tokens=16,
    moving_output_tokens=384,
    rebalance_steps=24,
    load_interval_steps=2,
    prompt_rounds=12,
    long_prompts=2,
    long_tokens=128,
    chunk_tokens=128,
    page_size=16,
    l1_tokens=4096,
)
FULL_STREAMS = StreamLoad(
    num_streams=64,
    num_contexts=384,
    context_tokens=512,
    new_tokens=16,
    answer_tokens=24,
    long_answer_tokens=192,
    chunk_tokens=8192,
    page_size=64,
    l1_tokens=32_768,
    l2_tokens=86_016,
    l3_bytes=48 << 30,
)
TINY_STREAMS = StreamLoad(
    num_streams=4,
    num_contexts=24,
    context_tokens=64,
    new_tokens=4,
    answer_tokens=4,
    long_answer_tokens=48,
    chunk_tokens=64,
    page_size=16,
    l1_tokens=320,
    l2_tokens=1024,
    l3_bytes=64 << 20,
)
