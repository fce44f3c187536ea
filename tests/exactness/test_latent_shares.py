"""Latent pages are the same on every rank: L2 has one copy, and each rank moves a share of it."""

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
from tests.exactness.reference import Reference, References

PROMPTS = make_prompts(23, [100, 130, 49])
NUM_TOKENS = 16


async def reload(reference: Reference, tp: int) -> tuple[list[int], int]:
    """The bytes that each rank loads of the prompts, exactly answered, and L2's pages."""
    expected = reference.expect(PROMPTS)
    config = engine_config(reference.folder, parallel={"tp": tp})
    async with in_process_engine(config) as engine:
        await run(engine, PROMPTS, NUM_TOKENS)
        await engine.settle()
        await engine.flush_l1()
        outputs = await run(engine, PROMPTS, NUM_TOKENS)
        await assert_all_exact(engine, expected, outputs)
        assert count_tokens(outputs, "l2") == sum(map(cacheable_tokens, PROMPTS))

        await engine.settle()
        stats = await engine.check()
        loaded = [stats[f"gpu{rank}"]["loaded_bytes"] for rank in range(tp)]
        return loaded, stats["host"]["pages_ready"]


@pytest.mark.parametrize("tp", [2, 4])
async def test_all_ranks_together_move_what_one_rank_alone_does(
    tp: int, references: References, tmp_path: Path
) -> None:
    reference = references(Family.DEEPSEEK_V2)
    [alone], pages = await reload(reference, 1)

    loaded, pages_of_all = await reload(reference, tp)

    assert sum(loaded) == alone
    assert pages_of_all == pages
    # Of each prompt's pages a rank has at most one more than another.
    page_bytes = alone * 16 // sum(map(cacheable_tokens, PROMPTS))
    assert max(loaded) - min(loaded) <= len(PROMPTS) * page_bytes
