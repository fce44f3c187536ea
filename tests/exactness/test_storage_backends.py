"""Backends other than files, through the whole engine: a restart goes on from what they hold."""

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
from tests.exactness.l3_stores import L3_BACKENDS, l3_store
from tests.exactness.reference import NUM_TOKENS, References

PROMPTS = make_prompts(83, [100, 64, 37])
NUM_CACHEABLE = sum(cacheable_tokens(prompt) for prompt in PROMPTS)


@pytest.mark.parametrize("backend", [name for name in L3_BACKENDS if name not in ("file", "fake")])
async def test_restart_goes_on_from_what_is_stored(
    backend: str, references: References, tmp_path: Path
) -> None:
    reference = references(Family.QWEN3)
    with l3_store(backend, tmp_path) as l3:
        config = engine_config(reference.folder, cache={"l3": l3})
        async with in_process_engine(config) as engine:
            await run(engine, PROMPTS, 1)
            await engine.check()

        async with in_process_engine(config) as engine:
            outputs = await run(engine, PROMPTS, NUM_TOKENS)
            await assert_all_exact(engine, reference.expect(PROMPTS), outputs)
            assert count_tokens(outputs, "l3") == NUM_CACHEABLE
            await engine.check()
            flushed = await engine.flush(l3=True)
            assert flushed["l3"] == "OK"

        async with in_process_engine(config) as engine:
            outputs = await run(engine, PROMPTS, 1)
            assert count_tokens(outputs, "l3") == 0
