"""Models whose layers keep states answer as transformers does, wherever their states were left.

A state serves one length of a prefix alone, so these cases are about ends: of chunks, turns, forks.
"""

from pathlib import Path

import pytest

from raydix.runtime.model.families.table import Family
from raydix.runtime.testing.engine import InProcessEngine, in_process_engine
from tests.exactness.engines import (
    PAGE_SIZE,
    assert_all_exact,
    count_tokens,
    engine_config,
    make_prompts,
    run,
)
from tests.exactness.poison import Poison, poison
from tests.exactness.reference import Prompt, Reference, References
from tests.exactness.states import State, reach

FAMILIES = [Family.QWEN3_5_TEXT, Family.QWEN3_NEXT]
SHARED = 5 * PAGE_SIZE + 3
NUM_TOKENS = 24


def forked(seed: int, num_prompts: int, num_shared: int = SHARED) -> list[Prompt]:
    """Prompts that begin alike and end apart, within a page."""
    return make_prompts(seed, [num_shared + 21] * num_prompts, num_shared=num_shared)


async def ask(engine: InProcessEngine, reference: Reference, prompts: list[Prompt]) -> int:
    """Ask one prompt after another, exactly; returns how many tokens came from a cache."""
    outputs = [(await run(engine, [prompt], NUM_TOKENS))[0] for prompt in prompts]
    await assert_all_exact(engine, reference.expect(prompts), outputs)
    return sum(count_tokens(outputs, tier) for tier in ("l1", "l2", "l3"))


@pytest.mark.part
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tier", [State.L1, State.L2, State.L3])
async def test_the_third_of_a_fork_goes_on_from_where_the_second_parted(
    family: Family, tier: State, references: References, tmp_path: Path
) -> None:
    reference = references(family)
    first, second, third = forked(11, 3)
    num_shared = SHARED // PAGE_SIZE * PAGE_SIZE
    async with in_process_engine(engine_config(reference.folder, tmp_path)) as engine:
        assert await ask(engine, reference, [first]) == 0
        # The first left its states at regular distances and at its own ends.
        assert await ask(engine, reference, [second]) < num_shared
        await engine.settle()
        if tier is not State.L1:
            await engine.flush_l1()
        if tier is State.L3:
            await engine.flush()
        assert await ask(engine, reference, [third]) == num_shared
        await engine.check()


@pytest.mark.part
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chunk", [PAGE_SIZE, 3 * PAGE_SIZE, 5 * PAGE_SIZE])
async def test_prompts_in_chunks_are_found_at_their_ends(
    family: Family, chunk: int, references: References
) -> None:
    reference = references(family)
    prompts = make_prompts(12, [6 * PAGE_SIZE, 6 * PAGE_SIZE + 1, 6 * PAGE_SIZE + 9])
    config = engine_config(reference.folder, scheduler={"chunked_prefill_tokens": chunk})
    async with in_process_engine(config) as engine:
        assert await ask(engine, reference, prompts) == 0
        # The last token of the first is the last of a page: the state before that page is needed.
        assert await ask(engine, reference, prompts) == (5 + 6 + 6) * PAGE_SIZE
        await engine.check()


@pytest.mark.part
@pytest.mark.parametrize("family", FAMILIES)
async def test_each_turn_of_a_conversation_goes_on_from_the_last_page_of_the_answer(
    family: Family, references: References
) -> None:
    reference = references(family)
    [prompt] = make_prompts(13, [2 * PAGE_SIZE + 5])
    async with in_process_engine(engine_config(reference.folder)) as engine:
        num_computed = 0
        for turn in range(4):
            [output] = await run(engine, [prompt], NUM_TOKENS)
            await assert_all_exact(engine, reference.expect([prompt]), [output])
            assert count_tokens([output], "l1") == num_computed // PAGE_SIZE * PAGE_SIZE
            # The last token of an answer was sampled, and is in no state yet.
            num_computed = len(prompt) + NUM_TOKENS - 1
            tokens = list(output.outputs[0].token_ids)
            prompt = (*prompt, *tokens, *make_prompts(14 + turn, [11])[0])
        await engine.check()


@pytest.mark.part
@pytest.mark.parametrize("family", FAMILIES)
async def test_many_at_once_in_few_pages_are_retracted_and_answer_the_same(
    family: Family, references: References
) -> None:
    reference = references(family)
    prompts = [*forked(15, 5), *make_prompts(16, [40, 70, 100])]
    config = engine_config(reference.folder, cache={"l1": {"num_pages": 17}})
    async with in_process_engine(config) as engine:
        outputs = await run(engine, prompts, 64)
        await assert_all_exact(engine, reference.expect(prompts), outputs)
        assert (await engine.stats())["scheduler"]["retracted_requests"] > 0
        await engine.check()


@pytest.mark.parametrize("kind", list(Poison))
@pytest.mark.parametrize("tier", [State.L1, State.L2, State.L3])
async def test_a_wrong_state_is_found(
    tier: State, kind: Poison, references: References, tmp_path: Path
) -> None:
    reference = references(Family.QWEN3_NEXT)
    prompts = make_prompts(17, [100, 100])
    config = engine_config(reference.folder, tmp_path)
    async with in_process_engine(config) as engine:
        await reach(engine, config, tier, prompts)
        poison(engine, tmp_path, tier, kind, *prompts, group=0)
        outputs = await run(engine, prompts, NUM_TOKENS)

        with pytest.raises(AssertionError, match=r"token \d+ is \d+, not \d+"):
            await assert_all_exact(engine, reference.expect(prompts[:1]), outputs[:1])
        await assert_all_exact(engine, reference.expect(prompts[1:]), outputs[1:])
