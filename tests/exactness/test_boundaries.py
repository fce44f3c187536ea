"""A match may end at any page, in any tier."""

from pathlib import Path

import pytest

from raydix.runtime.model.families.table import Family
from raydix.runtime.testing.engine import in_process_engine
from tests.exactness.engines import (
    PAGE_SIZE,
    assert_all_exact,
    count_tokens,
    engine_config,
    make_prompts,
    run,
)
from tests.exactness.reference import References
from tests.exactness.states import State, reach

[PROMPT] = make_prompts(21, [100])
NUM_PAGES = len(PROMPT) // PAGE_SIZE
NUM_TOKENS = 24


@pytest.mark.parametrize("state", [State.L1, State.L2, State.L3])
async def test_match_ends_at_each_page_boundary(
    state: State, references: References, tmp_path: Path
) -> None:
    reference = references(Family.QWEN3)
    config = engine_config(reference.folder, tmp_path)

    async with in_process_engine(config) as engine:
        for num_pages in range(NUM_PAGES + 1):
            await engine.settle()
            await engine.flush(l3=True)
            if num_pages:
                await reach(engine, config, state, [PROMPT[: num_pages * PAGE_SIZE]])
            outputs = await run(engine, [PROMPT], NUM_TOKENS)
            await assert_all_exact(engine, reference.expect([PROMPT]), outputs)
            assert outputs[0].num_cached_tokens == num_pages * PAGE_SIZE
            assert count_tokens(outputs, state.value) == num_pages * PAGE_SIZE
        await engine.check()


async def test_eviction_leaves_any_number_of_pages(references: References) -> None:
    reference = references(Family.LLAMA)
    total_pages = 16
    config = engine_config(reference.folder, cache={"l1": {"num_pages": total_pages}, "l2": None})
    found: set[int] = set()

    async with in_process_engine(config) as engine:
        for filler_pages in range(total_pages - NUM_PAGES - 3, total_pages):
            await engine.flush_l1()
            for num_pages in range(1, NUM_PAGES + 1):  # a node of the radix tree for each page
                await run(engine, [PROMPT[: num_pages * PAGE_SIZE]], 1)
            await run(engine, make_prompts(filler_pages, [filler_pages * PAGE_SIZE]), 1)
            outputs = await run(engine, [PROMPT], NUM_TOKENS)
            await assert_all_exact(engine, reference.expect([PROMPT]), outputs)
            found.add(outputs[0].num_cached_tokens // PAGE_SIZE)
        await engine.check()

    assert found == set(range(NUM_PAGES + 1))
