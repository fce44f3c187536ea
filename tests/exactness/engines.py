"""Engines under test and what is asked of them."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.api.request_options import RequestOptions
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config
from raydix.runtime.model.families.table import Family
from raydix.runtime.testing.engine import InProcessEngine
from tests.checkpoints import STATEFUL
from tests.exactness.reference import GREEDY, Expected, Prompt, assert_exact, generate

CACHING_KINDS = [Family.QWEN3, Family.MISTRAL, Family.GEMMA3, Family.DEEPSEEK_V3]
"""Families whose layers see everything, see a window, do the one or the other, keep latents."""
WINDOWED = [Family.MISTRAL, Family.GEMMA2, Family.GPT_OSS]
"""All or every other one of their layers look back over 20 tokens: at two pages before a page."""
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
"""Every suite that takes them runs on one GPU, too."""
PAGE_SIZE = 16
VOCAB_SIZE = 199
MAX_MODEL_LEN = 256


def places(num_gpus: int) -> list[Any]:
    """Devices and tensor-parallel ranks; `num_gpus`: where there are several."""
    return [
        ("cpu", 1),
        ("cpu", 2),
        pytest.param("cuda", 1, marks=pytest.mark.gpu),
        pytest.param("cuda", num_gpus, marks=pytest.mark.multi_gpu),
    ]


def make_prompts(seed: int, lengths: Sequence[int], num_shared: int = 0) -> list[Prompt]:
    """Random prompts of these lengths, whose first `num_shared` tokens are the same."""
    rng = random.Random(seed)
    shared = [rng.randrange(VOCAB_SIZE) for _ in range(num_shared)]
    return [
        tuple(
            (shared + [rng.randrange(VOCAB_SIZE) for _ in range(max(length - num_shared, 0))])[
                :length
            ]
        )
        for length in lengths
    ]


def engine_config(folder: Path, l3: Path | None = None, **sections: Any) -> EngineConfig:
    """A small engine on the cpu in which every page is worth a fetch and a load, however slow.

    L1 has room for all windows, so that a prefix can be taken up wherever they were computed.
    `sections` are laid over it.
    """
    base: dict[str, Any] = {
        "model": {"path": str(folder), "max_model_len": MAX_MODEL_LEN},
        "cache": {
            "page_size": PAGE_SIZE,
            "load": "always",
            "l1": {"num_pages": 128, "tokens_per_window": PAGE_SIZE},
            "l2": {"bytes_per_node": "4MiB"},
            "l3": None if l3 is None else {"backend": "file", "path": str(l3)},
            "prefetch": {"strategy": "wait_complete", "min_tokens": 1},
        },
        "scheduler": {"chunked_prefill_tokens": 3 * PAGE_SIZE, "max_running_requests": 8},
    }
    return load_config(base, sections)


async def run(
    engine: InProcessEngine,
    prompts: Sequence[Prompt],
    num_tokens: int,
    sampling: Mapping[str, Any] = GREEDY,
    options: RequestOptions | None = None,
) -> list[RequestOutput]:
    """All prompts at once. The parts of each prompt by source sum to its length."""
    each = (generate(engine.client, prompt, num_tokens, sampling, options) for prompt in prompts)
    outputs = await asyncio.gather(*each)
    for prompt, output in zip(prompts, outputs, strict=True):
        sources = output.metrics.cached_tokens_by_source
        assert sum(sources.values()) == len(prompt), sources
    return list(outputs)


async def assert_all_exact(
    engine: InProcessEngine, expected: Sequence[Expected], outputs: Sequence[RequestOutput]
) -> None:
    """Every output is what the reference says; prints how many positions were decided."""
    num_decided = num_tokens = 0
    for each, output in zip(expected, outputs, strict=True):
        token_ids = output.outputs[0].token_ids
        num_decided += await assert_exact(engine.client, each, token_ids)
        num_tokens += len(token_ids)
    print(f"{num_decided} of {num_tokens} positions decided")


def count_tokens(outputs: Sequence[RequestOutput], source: str) -> int:
    """Prompt tokens from one source."""
    return sum(output.metrics.cached_tokens_by_source.get(source, 0) for output in outputs)


def cacheable_tokens(prompt: Prompt, family: Family | None = None) -> int:
    """Tokens that can come from a cache: those of full pages, but never the last token.

    A family that keeps states goes on from the border of a page before its last token.
    """
    if family in STATEFUL:
        return (len(prompt) - 1) // PAGE_SIZE * PAGE_SIZE
    return min(len(prompt) // PAGE_SIZE * PAGE_SIZE, len(prompt) - 1)
