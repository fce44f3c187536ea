"""Contexts of many windows: where turns and branches go on, and what a lost window costs."""

import asyncio
from pathlib import Path

import pytest

from raydix.runtime.cache.checkpoints import window_before
from raydix.runtime.model.families.table import Family
from raydix.runtime.storage.backends.corruption import Corruption, corrupt
from raydix.runtime.testing.engine import InProcessEngine, in_process_engine
from tests.exactness.engines import (
    PAGE_SIZE,
    WINDOWED,
    assert_all_exact,
    count_tokens,
    engine_config,
    make_prompts,
    run,
)
from tests.exactness.held import usable_pages
from tests.exactness.poison import object_path
from tests.exactness.reference import Prompt, Reference, References
from tests.exactness.states import State

MIXED = [Family.GEMMA2, Family.GPT_OSS]
[LONG] = make_prompts(27, [230])
REGULAR = 160
"""Tokens before a checkpoint that has nothing to do with the prompt: eight windows of 20."""
NUM_TOKENS = 16
NUM_ANSWERED = 20
"""Tokens of a turn's answer, which with the last prompt end inside a page."""
NUM_SHARED = 7 * PAGE_SIZE + 3
"""Tokens that all prompts of a tenant begin with."""
TURNS = make_prompts(28, [50, 30, 21])


async def leave_only(engine: InProcessEngine, tier: State) -> None:
    """What L1 has is left in `tier` alone, or besides in those below it."""
    await engine.settle()
    if tier is State.L2:
        await engine.flush_l1()
    elif tier is State.L3:
        await engine.flush()


async def ask(
    engine: InProcessEngine, reference: Reference, prompt: Prompt, num_tokens: int = NUM_TOKENS
) -> tuple[dict[str, int], list[int]]:
    """Tokens of a prompt by source, and its exact answer."""
    outputs = await run(engine, [prompt], num_tokens)
    await assert_all_exact(engine, reference.expect([prompt]), outputs)
    await engine.check()
    sources = {tier: count_tokens(outputs, tier) for tier in ("l1", "l2", "l3")}
    return sources, list(outputs[0].outputs[0].token_ids)


@pytest.mark.part
@pytest.mark.parametrize("page_size", [4, PAGE_SIZE])
@pytest.mark.parametrize("family", WINDOWED)
async def test_branches_of_a_long_context_begin_at_its_checkpoints(
    family: Family, page_size: int, references: References, tmp_path: Path
) -> None:
    """Below L1: at the regular one, and before the end of the prompt; inside a window and out."""
    reference = references(family)
    cache = {"page_size": page_size, "l1": {"num_pages": 1024, "tokens_per_window": page_size}}
    config = engine_config(reference.folder, tmp_path, cache=cache)
    [tail] = make_prompts(29, [10])
    ends = {(*LONG, *tail): len(LONG) // page_size * page_size}
    for num_shared in (REGULAR + 2 * page_size + 1, REGULAR):
        ends[(*LONG[:num_shared], *tail)] = REGULAR
    ends[(*LONG[: REGULAR - 1], *tail)] = 0

    async with in_process_engine(config) as engine:
        for tier in (State.L2, State.L3):
            for branch, end in ends.items():
                await engine.flush(l3=True)
                await ask(engine, reference, LONG, 1)
                await leave_only(engine, tier)
                assert usable_pages(engine, tier, branch, tmp_path) * page_size == end

                sources, _ = await ask(engine, reference, branch)
                assert sources == {"l1": 0, "l2": 0, "l3": 0, tier.value: end}


@pytest.mark.parametrize("family", MIXED)
async def test_where_a_prefix_outlived_its_window_the_next_branch_goes_on(
    family: Family, references: References, tmp_path: Path
) -> None:
    reference = references(family)
    config = engine_config(reference.folder, tmp_path)
    num_shared = 5 * PAGE_SIZE
    branches = make_prompts(30, [120, 120, 120, 120], num_shared=num_shared)

    async with in_process_engine(config) as engine:
        for number, branch in enumerate(branches):
            sources, _ = await ask(engine, reference, branch, 1)
            tier = State.L2 if number < 3 else State.L3
            assert sources[tier.value] == (0 if number < 2 else num_shared)
            await leave_only(engine, State.L2 if number < 2 else State.L3)


@pytest.mark.part
@pytest.mark.parametrize("tier", [State.L2, State.L3])
@pytest.mark.parametrize("family", [Family.QWEN3, Family.GEMMA3, Family.GPT_OSS, Family.MISTRAL])
async def test_third_visit_of_a_tenant_finds_the_prefix_that_its_prompts_share(
    family: Family, tier: State, references: References, tmp_path: Path
) -> None:
    """The prefix ends between checkpoints, and no page is left above the tier between visits."""
    reference = references(family)
    num_visits, first_hit = 4, 1 if family is Family.QWEN3 else 2
    tenants = [make_prompts(40 + n, [140] * num_visits, num_shared=NUM_SHARED) for n in range(2)]

    async with in_process_engine(engine_config(reference.folder, tmp_path)) as engine:
        for number in range(num_visits):
            for visits in tenants:
                sources, _ = await ask(engine, reference, visits[number], 4)
                hit = NUM_SHARED // PAGE_SIZE * PAGE_SIZE if number >= first_hit else 0
                assert sources == {"l1": 0, "l2": 0, "l3": 0, tier.value: hit}
                await leave_only(engine, tier)


@pytest.mark.part
@pytest.mark.parametrize("family", WINDOWED)
@pytest.mark.parametrize("tier", [State.L1, State.L2, State.L3])
async def test_each_turn_goes_on_where_the_last_answer_ended(
    tier: State, family: Family, references: References, tmp_path: Path
) -> None:
    reference = references(family)
    config = engine_config(reference.folder, tmp_path)
    context: Prompt = ()
    num_computed = 0

    async with in_process_engine(config) as engine:
        for turn in TURNS:
            context = (*context, *turn)
            sources, answer = await ask(engine, reference, context, NUM_ANSWERED)
            assert sources[tier.value] == num_computed // PAGE_SIZE * PAGE_SIZE
            context = (*context, *answer)
            # The last token of an answer has never been an input.
            num_computed = len(context) - 1
            await leave_only(engine, tier)


@pytest.mark.part
@pytest.mark.parametrize(
    ("family", "damage"),
    [
        *((family, None) for family in WINDOWED),
        *((Family.MISTRAL, damage) for damage in Corruption),
        *((family, Corruption.FLIPPED) for family in MIXED),
    ],
)
async def test_without_a_window_in_l3_a_prefix_ends_at_the_checkpoint_before(
    family: Family, damage: Corruption | None, references: References, tmp_path: Path
) -> None:
    """A missing or bad object of the last window; it is there again once it has been computed."""
    reference = references(family)
    config = engine_config(reference.folder, tmp_path)
    prompt = LONG[:200]
    end = len(prompt) // PAGE_SIZE

    async with in_process_engine(config) as engine:
        await ask(engine, reference, prompt, 1)
        await leave_only(engine, State.L3)
        reaches = enumerate(engine.facts.layout.reaches)
        [(group, reach)] = [(group, reach) for group, reach in reaches if reach is not None]
        path = object_path(tmp_path, prompt, window_before(end, reach).start, group)
        good = path.read_bytes()
        await asyncio.to_thread(path.unlink)
        if damage is not None:
            path.write_bytes(corrupt(good, damage))

        sources, _ = await ask(engine, reference, prompt)
        assert sources == {"l1": 0, "l2": 0, "l3": REGULAR}
        assert path.read_bytes() == good

        await leave_only(engine, State.L3)
        sources, _ = await ask(engine, reference, prompt)
        assert sources["l3"] == end * PAGE_SIZE
