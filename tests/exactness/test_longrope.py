"""An engine that serves no more than the original context uses the short factors of LongRoPE."""

from pathlib import Path

from raydix.runtime.model.families.table import Family
from raydix.runtime.testing.engine import in_process_engine
from tests.checkpoints import make_checkpoint
from tests.exactness.engines import (
    MAX_MODEL_LEN,
    assert_all_exact,
    cacheable_tokens,
    count_tokens,
    engine_config,
    make_prompts,
    run,
)
from tests.exactness.reference import Reference

NUM_TOKENS = 16


async def test_short_factors_serve_an_engine_of_short_requests(tmp_path: Path) -> None:
    # transformers has the short ones up to the original context, and the model knows a longer one.
    folder = make_checkpoint(
        tmp_path, Family.PHI3, seed=3, original_max_position_embeddings=MAX_MODEL_LEN
    )
    expected = Reference(folder).expect(make_prompts(8, [1, 40, 130]))
    prompts = [each.prompt for each in expected]

    async with in_process_engine(engine_config(folder)) as engine:
        for cached in (0, sum(map(cacheable_tokens, prompts))):
            outputs = await run(engine, prompts, NUM_TOKENS)
            await assert_all_exact(engine, expected, outputs)
            assert count_tokens(outputs, "l1") == cached
            await engine.settle()
        await engine.check()
