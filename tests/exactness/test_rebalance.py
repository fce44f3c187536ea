"""Tokens stay those of one rank before, while and after experts move from rank to rank."""

from pathlib import Path
from typing import Any

import pytest

from raydix.runtime.model.families.table import Family
from raydix.runtime.testing.engine import InProcessEngine, in_process_engine
from tests.exactness.engines import assert_all_exact, engine_config, make_prompts, run
from tests.exactness.reference import References

NUM_TOKENS = 24
MAX_ROUNDS = 60
EAGER = {
    "rebalance_interval_steps": 8,
    "load_interval_steps": 4,
    "copies_per_step": 1,
    "redundant_per_rank": 1,
}


async def _figures(engine: InProcessEngine) -> dict[str, Any]:
    return (await engine.stats())["scheduler"]


@pytest.mark.parametrize("parallel", [{"dp": 2, "tp": 1, "ep": 2}, {"dp": 1, "tp": 2, "ep": 2}])
@pytest.mark.parametrize("family", [Family.QWEN3_MOE, Family.GPT_OSS, Family.DEEPSEEK_V3])
async def test_tokens_are_exact_throughout_a_rebalance(
    family: Family, parallel: dict[str, int], references: References, tmp_path: Path
) -> None:
    reference = references(family)
    # The plans of this policy move nearly everything, every time.
    experts = {**EAGER, "rebalance": "deepseek"}
    config = engine_config(reference.folder, tmp_path, parallel=parallel, experts=experts)
    moving = 0

    async with in_process_engine(config) as engine:
        for number in range(MAX_ROUNDS):
            prompts = make_prompts(number, [60, 33, 20])
            before = await _figures(engine)
            outputs = await run(engine, prompts, NUM_TOKENS)
            after = await _figures(engine)

            await assert_all_exact(engine, reference.expect(prompts), outputs)
            is_moving = after["expert_placement_version"] > before["expert_placement_version"]
            moving += is_moving
            if moving > 2 and not is_moving and not after["expert_moves_left"]:
                break
        else:
            pytest.fail(f"no migration has ended in {MAX_ROUNDS} rounds: {after}")
        await engine.check()

    assert after["expert_moves"] > 0
    print({name: value for name, value in after.items() if name.startswith("expert")})
