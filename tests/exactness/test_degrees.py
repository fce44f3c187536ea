"""Pages that were written by some number of tensor-parallel ranks serve any other number."""

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
from tests.exactness.poison import Poison, poison, poison_rank
from tests.exactness.reference import References
from tests.exactness.states import State, reach
from tests.moe.gpu_ranks import NUM_RANKS

NUM_TOKENS = 16
DEGREES = (2, 1, 4, 2)
"""The degrees of engines that follow each other on one L3."""
PROMPTS = make_prompts(61, [100, 70, 90, 49])


@pytest.mark.part
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.multi_gpu)])
async def test_each_degree_goes_on_from_the_pages_of_those_before(
    device: str, caching_kind: Family, references: References, tmp_path: Path
) -> None:
    reference = references(caching_kind)
    expected = reference.expect(PROMPTS)

    degrees = [tp for tp in DEGREES if device == "cpu" or tp <= NUM_RANKS]
    for number, tp in enumerate(degrees):
        model = {"device": device, "dtype": "float32"}
        config = engine_config(reference.folder, tmp_path, model=model, parallel={"tp": tp})
        async with in_process_engine(config) as engine:
            known = PROMPTS[:number]
            outputs = await run(engine, known, NUM_TOKENS)
            await assert_all_exact(engine, expected[:number], outputs)
            assert count_tokens(outputs, "l3") == sum(map(cacheable_tokens, known))

            # Written by this one, for those that follow.
            outputs = await run(engine, [PROMPTS[number]], NUM_TOKENS)
            await assert_all_exact(engine, expected[number : number + 1], outputs)
            assert count_tokens(outputs, "l3") == 0
            await engine.check()


@pytest.mark.part
@pytest.mark.parametrize(
    ("family", "group", "writers", "readers"),
    [
        *((Family.QWEN3, 0, *degrees) for degrees in [(2, 1), (2, 4), (1, 2), (4, 2)]),
        (Family.MISTRAL, 0, 2, 1),
        (Family.GEMMA3, 0, 2, 4),
        (Family.GEMMA3, 1, 4, 2),
        (Family.DEEPSEEK_V3, 0, 2, 4),
        (Family.DEEPSEEK_V3, 0, 4, 1),
    ],
)
async def test_comparison_fails_on_a_wrong_page_of_another_degree(
    family: Family, group: int, writers: int, readers: int, references: References, tmp_path: Path
) -> None:
    reference = references(family)
    prompts = make_prompts(31, [100, 100])
    config = engine_config(reference.folder, tmp_path, parallel={"tp": writers})
    async with in_process_engine(config) as engine:
        await run(engine, prompts, 1)
        await engine.settle()
        poison(engine, tmp_path, State.L3, Poison.ANOTHER, *prompts, group=group)

    config = engine_config(reference.folder, tmp_path, parallel={"tp": readers})
    async with in_process_engine(config) as engine:
        outputs = await run(engine, prompts, NUM_TOKENS)

        assert count_tokens(outputs, "l3") == sum(map(cacheable_tokens, prompts))
        with pytest.raises(AssertionError, match=r"token \d+ is \d+, not \d+"):
            await assert_all_exact(engine, reference.expect(prompts[:1]), outputs[:1])
        await assert_all_exact(engine, reference.expect(prompts[1:]), outputs[1:])


@pytest.mark.parametrize("rank", [0, 1])
async def test_comparison_fails_on_the_wrong_heads_of_one_rank(
    rank: int, references: References, tmp_path: Path
) -> None:
    reference = references(Family.LLAMA)
    prompts = make_prompts(31, [100, 100])
    config = engine_config(reference.folder, tmp_path, parallel={"tp": 2})

    async with in_process_engine(config) as engine:
        await reach(engine, config, State.L2, prompts)
        poison_rank(engine, *prompts, rank=rank, num_ranks=2)
        outputs = await run(engine, prompts, NUM_TOKENS)

        assert count_tokens(outputs, "l2") > 0
        with pytest.raises(AssertionError, match=r"token \d+ is \d+, not \d+"):
            await assert_all_exact(engine, reference.expect(prompts[:1]), outputs[:1])
        await assert_all_exact(engine, reference.expect(prompts[1:]), outputs[1:])
