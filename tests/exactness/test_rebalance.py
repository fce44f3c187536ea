"""Tokens stay those of one rank before, while and after experts move from rank to rank."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from raydix.ids import LogicalExpertId
from raydix.runtime.model.experts.stored_experts import StoredExperts
from raydix.runtime.model.families.table import Family
from raydix.runtime.testing.engine import InProcessEngine, in_process_engine
from tests.checkpoints import make_checkpoint
from tests.exactness.engines import assert_all_exact, engine_config, make_prompts, run
from tests.exactness.reference import Reference, References

NUM_TOKENS = 16
MAX_ROUNDS = 60
MANY_ROUNDS = 10
"""The rounds with experts on their way: on a quick machine one migration follows the other for
ever.
"""
EAGER = {
    "rebalance_interval_steps": 8,
    "load_interval_steps": 4,
    "copies_per_step": 1,
    "redundant_per_rank": 1,
}


async def _figures(engine: InProcessEngine) -> dict[str, Any]:
    return (await engine.stats())["scheduler"]


@pytest.mark.part
@pytest.mark.parametrize(
    ("family", "parallel", "overlap"),
    [
        (Family.QWEN3_MOE, {"dp": 2, "ep": 2}, "off"),
        (Family.QWEN3_MOE, {"tp": 2, "ep": 2}, "off"),
        (Family.GPT_OSS, {"dp": 2, "ep": 2}, "on"),
        (Family.DEEPSEEK_V3, {"dp": 2, "ep": 2}, "on"),
        pytest.param(Family.DEEPSEEK_V3, {"dp": 2, "tp": 2, "ep": 4}, "on", marks=pytest.mark.slow),
    ],
)
async def test_tokens_are_exact_throughout_a_rebalance(
    family: Family,
    parallel: dict[str, int],
    overlap: str,
    references: References,
    tmp_path: Path,
) -> None:
    reference = references(family)
    # The plans of this policy move nearly everything, every time.
    experts = {**EAGER, "rebalance": "deepseek", "overlap": overlap}
    config = engine_config(reference.folder, tmp_path, parallel=parallel, experts=experts)
    moving = 0

    async with in_process_engine(config) as engine:
        for number in range(MAX_ROUNDS):
            # The same few again and again: what is expected of each is worked out once.
            prompts = make_prompts(number % 4, [40, 20])
            before = await _figures(engine)
            outputs = await run(engine, prompts, NUM_TOKENS)
            after = await _figures(engine)

            await assert_all_exact(engine, reference.expect(prompts), outputs)
            is_moving = after["expert_placement_version"] > before["expert_placement_version"]
            moving += is_moving
            has_ended = moving > 1 and not is_moving and not after["expert_moves_left"]
            if has_ended or moving > MANY_ROUNDS:
                break
        else:
            pytest.fail(f"no migration has ended in {MAX_ROUNDS} rounds: {after}")
        await engine.check()

    assert after["expert_moves"] > 0
    print({name: value for name, value in after.items() if name.startswith("expert")})


async def test_skewed_loads_are_levelled_by_few_moves_and_tokens_stay(tmp_path: Path) -> None:
    """All rows want two of five experts, which are on the same rank at the start."""
    folder = make_checkpoint(tmp_path, Family.GPT_OSS, seed=5, num_hidden_layers=2)
    weights = load_file(folder / "model.safetensors")
    biases = [name for name in weights if name.endswith("router.bias")]
    for name in biases:
        weights[name] = torch.tensor([1e4, 1e4, 0.0, 0.0, 0.0])
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    reference = Reference(folder)
    experts = {**EAGER, "redundant_per_rank": 0, "rebalance": "incremental"}
    config = engine_config(folder, parallel={"dp": 2, "ep": 2}, experts=experts)
    prompts = make_prompts(0, [40, 20])
    found: list[float] = []

    async with in_process_engine(config) as engine:
        for _ in range(MAX_ROUNDS):
            outputs = await run(engine, prompts, NUM_TOKENS)
            await assert_all_exact(engine, reference.expect(prompts), outputs)
            figures = await _figures(engine)
            found.append(figures["expert_balance_mean_of_layers"])
            if found[-1] > 0.95 and not figures["expert_moves_left"]:
                break

    assert min(found) == 0.5
    assert found[-1] == 1.0
    # One expert of each layer, which another may make way for.
    assert len(biases) <= figures["expert_moves"] <= 2 * len(biases)


async def test_comparison_fails_on_an_expert_that_is_taken_for_another(
    references: References, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies that bring the expert before the one that was ordered."""
    fill_seat = StoredExperts.fill_seat

    def fill_wrongly(self: StoredExperts, layer: int, seat: int, expert: LogicalExpertId) -> None:
        fill_seat(self, layer, seat, LogicalExpertId(max(expert - 1, 0)))

    monkeypatch.setattr(StoredExperts, "fill_seat", fill_wrongly)
    reference = references(Family.QWEN3_MOE)
    experts = {**EAGER, "rebalance": "deepseek"}
    config = engine_config(reference.folder, tmp_path, parallel={"dp": 2, "ep": 2}, experts=experts)
    prompts = make_prompts(0, [40, 20])

    async def run_and_compare(engine: InProcessEngine) -> None:
        for _ in range(MAX_ROUNDS):
            outputs = await run(engine, prompts, NUM_TOKENS)
            await assert_all_exact(engine, reference.expect(prompts), outputs)

    async with in_process_engine(config) as engine:
        with pytest.raises(AssertionError, match=r"token \d+ is \d+, not \d+"):
            await run_and_compare(engine)
