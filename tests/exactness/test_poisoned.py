"""The comparison is worth something: it fails when one page is wrong."""

import itertools
from pathlib import Path

import pytest

from raydix.runtime.model.families.table import Family
from raydix.runtime.testing.engine import in_process_engine
from tests.exactness.engines import assert_all_exact, count_tokens, engine_config, make_prompts, run
from tests.exactness.poison import Poison, poison
from tests.exactness.reference import References
from tests.exactness.states import State, reach

PROMPTS = make_prompts(31, [100, 100])
NUM_TOKENS = 24


TIERS = [State.L1, State.L2, State.L3]
MIXED = [Family.GEMMA2, Family.GEMMA3, Family.GEMMA3_WITH_VISION, Family.GPT_OSS]
"""Families with a KV group of windows, and one that sees everything."""
CASES = [
    *itertools.product([Family.QWEN3_MOE], TIERS, Poison, [1], [0]),
    *((each, State.L2, Poison.ANOTHER, 1, 0) for each in Family if each is not Family.QWEN3_MOE),
    *((each, State.L2, Poison.ANOTHER, 1, 1) for each in MIXED),
    # Windows, latents; in L1 it is one rank's part of the page alone, where ranks share pages out.
    *itertools.product([Family.MISTRAL], [State.L1, State.L3], Poison, [1], [0]),
    *itertools.product([Family.GPT_OSS], [State.L1, State.L3], [Poison.ZEROS], [2], [0, 1]),
    *itertools.product([Family.QWEN3], TIERS, [Poison.ANOTHER], [2], [0]),
    *itertools.product([Family.DEEPSEEK_V3], TIERS[1:], [Poison.ANOTHER], [2], [0]),
]


@pytest.mark.part
@pytest.mark.parametrize(("family", "state", "kind", "tp", "group"), CASES)
async def test_comparison_fails_on_a_wrong_page(
    family: Family,
    state: State,
    kind: Poison,
    tp: int,
    group: int,
    *,
    references: References,
    tmp_path: Path,
) -> None:
    reference = references(family)
    config = engine_config(reference.folder, tmp_path, parallel={"tp": tp})

    async with in_process_engine(config) as engine:
        await reach(engine, config, state, PROMPTS)
        poison(engine, tmp_path, state, kind, *PROMPTS, group=group)
        outputs = await run(engine, PROMPTS, NUM_TOKENS)

        assert count_tokens(outputs, state.value) > 0
        with pytest.raises(AssertionError, match=r"token \d+ is \d+, not \d+"):
            await assert_all_exact(engine, reference.expect(PROMPTS[:1]), outputs[:1])
        await assert_all_exact(engine, reference.expect(PROMPTS[1:]), outputs[1:])
