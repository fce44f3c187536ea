"""The comparison is worth something: it fails when one page is wrong."""

from pathlib import Path

import pytest

from raydix.runtime.in_process import in_process_engine
from raydix.runtime.model.spec import Family
from tests.exactness.engines import assert_all_exact, count_tokens, engine_config, make_prompts, run
from tests.exactness.poison import Poison, poison
from tests.exactness.reference import References
from tests.exactness.states import State, reach

PROMPTS = make_prompts(31, [100, 100])
NUM_TOKENS = 24


@pytest.mark.parametrize("kind", list(Poison))
@pytest.mark.parametrize("state", [State.L1, State.L2, State.L3])
async def test_comparison_fails_on_a_wrong_page(
    state: State, kind: Poison, references: References, tmp_path: Path
) -> None:
    reference = references(Family.QWEN3_MOE)
    config = engine_config(reference.folder, tmp_path)

    async with in_process_engine(config) as engine:
        await reach(engine, config, state, PROMPTS)
        poison(engine, tmp_path, state, kind, *PROMPTS)
        outputs = await run(engine, PROMPTS, NUM_TOKENS)

        assert count_tokens(outputs, state.value) > 0
        with pytest.raises(AssertionError, match=r"token \d+ is \d+, not \d+"):
            await assert_all_exact(engine, reference.expect(PROMPTS[:1]), outputs[:1])
        await assert_all_exact(engine, reference.expect(PROMPTS[1:]), outputs[1:])
