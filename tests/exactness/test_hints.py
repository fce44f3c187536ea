"""A prefetch brings pages from L3 to L2, where a request finds them: the tokens of a cold run."""

import asyncio
from pathlib import Path

import pytest

from raydix.runtime.model.families.table import Family
from raydix.runtime.testing.engine import in_process_engine
from tests.exactness.engines import (
    CACHING_KINDS,
    PAGE_SIZE,
    assert_all_exact,
    engine_config,
    make_prompts,
    run,
)
from tests.exactness.reference import References

[PROMPT] = make_prompts(73, [100])
NUM_CACHED = len(PROMPT) // PAGE_SIZE * PAGE_SIZE
IN_L3 = {"l3": NUM_CACHED, "computed:partial_page": len(PROMPT) - NUM_CACHED}
NUM_TOKENS = 12


@pytest.mark.parametrize("family", CACHING_KINDS)
async def test_request_after_a_prefetch_is_a_hit_in_l2(
    family: Family, references: References, tmp_path: Path
) -> None:
    reference = references(family)
    async with in_process_engine(engine_config(reference.folder, tmp_path)) as engine:
        await run(engine, [PROMPT], 1)
        await engine.settle()
        await engine.flush()
        num_steps = (await engine.stats())["gpu0"]["num_steps"]
        assert await engine.client.prefetch(list(PROMPT)) == IN_L3
        assert (await engine.stats())["gpu0"]["num_steps"] == num_steps
        [output] = await run(engine, [PROMPT], NUM_TOKENS)
        assert output.metrics.cached_tokens_by_source["l2"] == NUM_CACHED
        await assert_all_exact(engine, reference.expect([PROMPT]), [output])
        await engine.check()


async def test_prefetch_that_is_given_up_leaves_nothing(references: References) -> None:
    reference = references(Family.QWEN3)
    slow = {"l3": {"backend": "fake", "latency_s": 0.5}}
    async with in_process_engine(engine_config(reference.folder, cache=slow)) as engine:
        await run(engine, [PROMPT], 1)
        await engine.settle()
        await engine.flush()
        hint = asyncio.create_task(engine.client.prefetch(list(PROMPT)))
        while not (await engine.stats())["host"]["lookups"]:
            assert not hint.done()
        hint.cancel()
        await asyncio.gather(hint, return_exceptions=True)
        await engine.settle()
        assert engine.client.num_requests == 0
        await engine.check()


async def test_without_l3_a_prefetch_tells_what_l1_and_l2_hold(references: References) -> None:
    reference = references(Family.QWEN3)
    async with in_process_engine(engine_config(reference.folder)) as engine:
        await run(engine, [PROMPT[:PAGE_SIZE]], 1)
        missing = NUM_CACHED - PAGE_SIZE
        expected = {
            "l1": PAGE_SIZE,
            "computed:not_found": missing,
            "computed:partial_page": len(PROMPT) - NUM_CACHED,
        }
        assert await engine.client.prefetch(list(PROMPT)) == expected
