"""A match may end at any page, in any tier: where sliding windows reach back, if they are there."""

from pathlib import Path

import pytest

from raydix.runtime.model.families.table import Family
from raydix.runtime.testing.engine import in_process_engine
from tests.exactness.engines import (
    CACHING_KINDS,
    PAGE_SIZE,
    WINDOWED,
    assert_all_exact,
    cacheable_tokens,
    count_tokens,
    engine_config,
    make_prompts,
    run,
)
from tests.exactness.held import usable_pages
from tests.exactness.reference import References
from tests.exactness.states import State, reach

[PROMPT] = make_prompts(21, [100])
NUM_PAGES = len(PROMPT) // PAGE_SIZE
NUM_TOKENS = 24
TIERS = [State.L1, State.L2, State.L3]
ENDS = [
    *((Family.QWEN3, tier, 1) for tier in TIERS),
    *((family, State.L3, 1) for family in CACHING_KINDS if family is not Family.QWEN3),
    (Family.MISTRAL, State.L1, 2),
    (Family.GEMMA3, State.L2, 2),
    (Family.DEEPSEEK_V3, State.L2, 2),
]


@pytest.mark.part
@pytest.mark.parametrize(("family", "state", "tp"), ENDS)
async def test_match_ends_at_each_page_boundary(
    family: Family, state: State, tp: int, references: References, tmp_path: Path
) -> None:
    reference = references(family)
    config = engine_config(reference.folder, tmp_path, parallel={"tp": tp})

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


@pytest.mark.part
@pytest.mark.parametrize("family", WINDOWED)
@pytest.mark.parametrize("state", TIERS)
async def test_a_branch_begins_at_the_last_page_before_it_that_has_its_window(
    state: State, family: Family, references: References, tmp_path: Path
) -> None:
    """L1 has room for every window; below it only that before the end of the prompt is kept."""
    reference = references(family)
    config = engine_config(reference.folder, tmp_path)
    branches = [
        (*PROMPT[: num_shared * PAGE_SIZE], *tail)
        for num_shared, tail in enumerate(make_prompts(22, [40] * (NUM_PAGES + 1)))
    ]
    expected = reference.expect(branches)

    async with in_process_engine(config) as engine:
        for num_shared, branch in enumerate(branches):
            await engine.flush(l3=True)
            await reach(engine, config, state, [PROMPT])
            num_usable = usable_pages(engine, state, branch, tmp_path)
            assert num_usable == (num_shared if state is State.L1 or num_shared == NUM_PAGES else 0)

            outputs = await run(engine, [branch], NUM_TOKENS)
            await assert_all_exact(engine, expected[num_shared : num_shared + 1], outputs)
            assert count_tokens(outputs, state.value) == num_usable * PAGE_SIZE
            await engine.settle()
        await engine.check()


@pytest.mark.parametrize("family", [Family.LLAMA, *WINDOWED[:2]])
async def test_eviction_leaves_any_number_of_pages(family: Family, references: References) -> None:
    reference = references(family)
    total_pages = 16
    config = engine_config(reference.folder, cache={"l1": {"num_pages": total_pages}, "l2": None})
    found: set[int] = set()

    async with in_process_engine(config) as engine:
        for filler_pages in range(total_pages - NUM_PAGES - 2, total_pages + 1):
            await engine.flush_l1()
            # A node of the radix tree for each page; the windows of long prefixes go first.
            for num_pages in range(NUM_PAGES, 0, -1):
                await run(engine, [PROMPT[: num_pages * PAGE_SIZE]], 1)
            for filler in make_prompts(filler_pages, [PAGE_SIZE] * filler_pages):
                await run(engine, [filler], 1)
            num_usable = usable_pages(engine, State.L1, PROMPT)

            outputs = await run(engine, [PROMPT], NUM_TOKENS)
            await assert_all_exact(engine, reference.expect([PROMPT]), outputs)
            assert outputs[0].num_cached_tokens == num_usable * PAGE_SIZE
            found.add(num_usable)
        await engine.check()

    assert found == set(range(NUM_PAGES + 1))


@pytest.mark.parametrize("state", TIERS)
async def test_a_prompt_that_is_cached_whole_finds_the_window_of_its_last_token(
    state: State, references: References, tmp_path: Path
) -> None:
    """The next token is computed again, and sees a page more than the one behind it would."""
    reference = references(Family.MISTRAL, window=PAGE_SIZE + 1)
    prompts = make_prompts(23, [96, 64, 16])
    config = engine_config(reference.folder, tmp_path)

    async with in_process_engine(config) as engine:
        await reach(engine, config, state, prompts)
        outputs = await run(engine, prompts, NUM_TOKENS)
        await assert_all_exact(engine, reference.expect(prompts), outputs)
        assert count_tokens(outputs, state.value) == sum(map(cacheable_tokens, prompts))
        await engine.check()
