"""The same prompts from every tier in turn, and again by another engine."""

from collections.abc import Sequence

from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.model.families.table import Family
from raydix.runtime.testing.engine import in_process_engine
from tests.exactness.engines import assert_all_exact, cacheable_tokens, count_tokens, run
from tests.exactness.reference import NUM_TOKENS, Expected


async def assert_exact_from_every_tier(
    config: EngineConfig,
    expected: Sequence[Expected],
    num_tokens: int,
    family: Family | None = None,
) -> None:
    """Answers equal the reference's whether computed or found: in L1, L2, L3, after a restart.

    num_tokens: the length of answers, but for the first, which has all that are known.
    """
    prompts = [each.prompt for each in expected]
    num_cacheable = sum(cacheable_tokens(prompt, family) for prompt in prompts)

    async with in_process_engine(config) as engine:
        cold = await run(engine, prompts, NUM_TOKENS)
        await assert_all_exact(engine, expected, cold)
        assert count_tokens(cold, "l1") + count_tokens(cold, "l2") + count_tokens(cold, "l3") == 0

        await engine.settle()
        outputs = await run(engine, prompts, num_tokens)
        await assert_all_exact(engine, expected, outputs)
        assert count_tokens(outputs, "l1") == num_cacheable

        await engine.settle()
        await engine.flush_l1()
        outputs = await run(engine, prompts, num_tokens)
        await assert_all_exact(engine, expected, outputs)
        assert count_tokens(outputs, "l2") == num_cacheable

        await engine.settle()
        await engine.flush()
        outputs = await run(engine, prompts, num_tokens)
        await assert_all_exact(engine, expected, outputs)
        assert count_tokens(outputs, "l3") == num_cacheable
        await engine.check()

    async with in_process_engine(config) as engine:
        outputs = await run(engine, prompts, num_tokens)
        await assert_all_exact(engine, expected, outputs)
        assert count_tokens(outputs, "l3") == num_cacheable
        await engine.check()
