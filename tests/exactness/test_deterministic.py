"""`model.deterministic`: equal requests have equal bits, whatever the cache holds and beside whom.

In bfloat16, where another order of sums would be another number.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from raydix.errors import ConfigError
from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.model.families.table import Family
from raydix.runtime.testing.engine import InProcessEngine, in_process_engine
from tests.checkpoints import make_checkpoint
from tests.exactness.engines import (
    DEVICES,
    PAGE_SIZE,
    count_tokens,
    engine_config,
    make_prompts,
    run,
)

FAMILIES = [Family.QWEN3, Family.QWEN3_MOE, Family.GPT_OSS, Family.GEMMA2]
NUM_TOKENS = 12
PROMPTS = make_prompts(5, [1, 40, 133, 90, 91, 92], num_shared=70)
GREEDY = {"temperature": 0.0, "logprobs": 4}
DRAWN = {"temperature": 0.8, "top_p": 0.9, "seed": 11, "logprobs": 4}


def bits(output: RequestOutput) -> tuple[Any, ...]:
    """Tokens and every logprob, exactly."""
    [answer] = output.outputs
    return answer.token_ids, answer.logprobs


def config_of(folder: Path, tmp_path: Path, device: str, chunk: int = 3 * PAGE_SIZE) -> Any:
    return engine_config(
        folder,
        tmp_path / "l3",
        model={"device": device, "dtype": "bfloat16", "deterministic": True},
        scheduler={"chunked_prefill_tokens": chunk, "max_running_requests": 8},
    )


async def ask_alone(engine: InProcessEngine, sampling: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Each prompt by itself, with nothing in any cache."""
    outputs = []
    for prompt in PROMPTS:
        outputs.append(bits((await run(engine, [prompt], NUM_TOKENS, sampling))[0]))
        await engine.settle()
        await engine.flush(l3=True)
    return outputs


def assert_same(outputs: Sequence[RequestOutput], expected: Sequence[tuple[Any, ...]]) -> None:
    for index, (output, wanted) in enumerate(zip(outputs, expected, strict=True)):
        found = bits(output)
        assert found[0] == wanted[0], f"tokens of prompt {index}"
        assert found[1] == wanted[1], f"logprobs of prompt {index}"


@pytest.mark.part
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("family", FAMILIES)
async def test_bits_are_the_same_in_every_cache_state_batch_and_chunk(
    family: Family, sampling: dict[str, Any], device: str, tmp_path: Path
) -> None:
    folder = make_checkpoint(tmp_path / "model", family, seed=3)
    async with in_process_engine(config_of(folder, tmp_path, device)) as engine:
        expected = await ask_alone(engine, sampling)

    for chunk in (PAGE_SIZE, 8 * PAGE_SIZE):
        async with in_process_engine(config_of(folder, tmp_path, device, chunk)) as engine:
            await engine.flush(l3=True)
            # All at once, cold; then each from L1, beside others; from L2; from L3.
            assert_same(await run(engine, PROMPTS, NUM_TOKENS, sampling), expected)
            order = list(range(len(PROMPTS)))
            random.Random(chunk).shuffle(order)
            for tier in ("l1", "l2", "l3"):
                await engine.settle()
                if tier == "l2":
                    await engine.flush_l1()
                if tier == "l3":
                    await engine.flush()
                outputs = await run(engine, [PROMPTS[i] for i in order], NUM_TOKENS, sampling)
                assert count_tokens(outputs, tier)
                assert_same(outputs, [expected[i] for i in order])
            await engine.check()


@pytest.mark.parametrize(
    ("family", "obstacle"),
    [
        (Family.DEEPSEEK_V3, "latent attention"),
        (Family.QWEN3_5_TEXT, "layers that keep a state"),
        (Family.GLM4_MOE, "a router that chooses"),
    ],
)
async def test_what_has_no_fixed_order_is_refused_by_name(
    family: Family, obstacle: str, tmp_path: Path
) -> None:
    folder = make_checkpoint(tmp_path / "model", family, seed=3)
    with pytest.raises(ConfigError, match=obstacle):
        async with in_process_engine(config_of(folder, tmp_path, "cpu")):
            pass
