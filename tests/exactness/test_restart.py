"""An engine that is stopped and started again on the same folder goes on from L3."""

from pathlib import Path

import pytest

from raydix.runtime.model.families.table import Family
from raydix.runtime.testing.engine import in_process_engine
from tests.exactness.engines import (
    assert_all_exact,
    cacheable_tokens,
    count_tokens,
    engine_config,
    make_prompts,
    run,
)
from tests.exactness.reference import NUM_TOKENS, References
from tests.exactness.states import compute

PROMPTS = make_prompts(81, [100, 64, 37])
NUM_CACHEABLE = sum(cacheable_tokens(prompt) for prompt in PROMPTS)


@pytest.mark.part
@pytest.mark.parametrize(
    ("family", "write_policy"),
    [
        (Family.MIXTRAL, "write_through"),
        (Family.MIXTRAL, "write_through_selective"),
        (Family.MIXTRAL, "write_back"),
        (Family.MISTRAL, "write_back"),
        (Family.GEMMA2, "write_through_selective"),
        (Family.GEMMA2, "write_back"),
        (Family.DEEPSEEK_V2, "write_back"),
    ],
)
async def test_clean_stop_keeps_the_pages(
    family: Family, write_policy: str, references: References, tmp_path: Path
) -> None:
    reference = references(family)
    config = engine_config(reference.folder, tmp_path, cache={"write_policy": write_policy})
    async with in_process_engine(config) as engine:
        await compute(engine, config, PROMPTS)

    async with in_process_engine(config) as engine:
        outputs = await run(engine, PROMPTS, NUM_TOKENS)
        await assert_all_exact(engine, reference.expect(PROMPTS), outputs)
        assert count_tokens(outputs, "l3") == NUM_CACHEABLE
        await engine.check()


@pytest.mark.part
@pytest.mark.parametrize(
    "family", [Family.QWEN3_MOE, Family.MISTRAL, Family.GPT_OSS, Family.DEEPSEEK_V3]
)
async def test_conversation_goes_on_after_a_restart(
    family: Family, references: References, tmp_path: Path
) -> None:
    """The second turn holds the first one's prompt and answer, and finds the pages of both."""
    reference = references(family)
    config = engine_config(reference.folder, tmp_path, parallel={"dp": 2})
    async with in_process_engine(config) as engine:
        [first] = await run(engine, PROMPTS[:1], NUM_TOKENS)

    second = (*PROMPTS[0], *first.outputs[0].token_ids, 7, 7, 7)
    async with in_process_engine(config) as engine:
        outputs = await run(engine, [second], NUM_TOKENS)
        await assert_all_exact(engine, reference.expect([second]), outputs)
        assert outputs[0].num_cached_tokens >= len(PROMPTS[0]) + NUM_TOKENS - 16
        await engine.check()
