"""Loads that several end-to-end benchmarks put on an engine, so that their figures compare."""

from dataclasses import dataclass
from typing import Any

from benchmarks.engine.engines import engine_sections

MAX_TPOT_MS = {1: 0.85, 8: 1.9, 32: 3.5, 64: 4.0, 128: 4.3}
"""Time per output token of moe_l12, by batch size."""
MAX_COLD_MS = 148.0
"""Time to the first token of a long prompt of dense_l16, of which nothing is cached."""
MAX_IDLE_FRACTION = 0.03
"""The part of the time in which the GPU does nothing while moe_l12 decodes."""


@dataclass(frozen=True, kw_only=True)
class Batches:
    """Batches of short prompts that generate at the same time."""

    max_ms: dict[int, float]
    """Bars of the time per output token, by batch size."""
    sampled: tuple[int, ...]
    """The batch sizes at which requests that sample are measured, too."""
    prompt_tokens: int = 256
    output_tokens: int = 128
    chunk_tokens: int = 8192
    page_size: int = 64
    max_model_len: int = 16_384

    def sections(self, output_tokens: int) -> dict[str, Any]:
        """The configuration, but for its model, of an engine that holds the largest batch."""
        largest = max(self.max_ms)
        pages_each = (self.prompt_tokens + output_tokens) // self.page_size + 2
        return engine_sections(
            max_model_len=self.max_model_len,
            page_size=self.page_size,
            l1_pages=2 * largest * pages_each,
            l2_bytes=None,
            chunk_tokens=self.chunk_tokens,
            max_running_requests=largest,
        )


FULL_BATCHES = Batches(max_ms=MAX_TPOT_MS, sampled=(1, 32, 128))
TINY_BATCHES = Batches(
    max_ms={1: 1.0, 4: 1.0},
    sampled=(4,),
    prompt_tokens=32,
    output_tokens=16,
    chunk_tokens=128,
    page_size=16,
    max_model_len=128,
)


@dataclass(frozen=True, kw_only=True)
class Contexts:
    """Long contexts, more of them than L1 holds, with a few new tokens each."""

    context_tokens: int = 16_384
    new_tokens: int = 16
    l1_tokens: int = 65_536
    num_contexts: int = 6
    l2_bytes: int = 10 << 30
    chunk_tokens: int = 8192

    def sections(self, page_size: int) -> dict[str, Any]:
        """The engine's configuration but for its model."""
        return engine_sections(
            max_model_len=3 * self.context_tokens,
            page_size=page_size,
            l1_pages=self.l1_tokens // page_size,
            l2_bytes=self.l2_bytes,
            chunk_tokens=self.chunk_tokens,
            max_running_requests=4,
        )


FULL_CONTEXTS = Contexts()
TINY_CONTEXTS = Contexts(context_tokens=256, l1_tokens=1024, l2_bytes=8 << 20, chunk_tokens=128)
