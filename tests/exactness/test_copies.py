"""Slow copies that end out of order: rows wait for the layers that they read."""

from typing import Any

import pytest

from raydix.runtime.in_process import in_process_engine
from raydix.runtime.model.spec import Family
from raydix.runtime.tiers.cpu_transfers import CpuTransfers
from tests.exactness.engines import assert_all_exact, count_tokens, engine_config, make_prompts, run
from tests.exactness.reference import References
from tests.exactness.states import State, reach

PROMPTS = make_prompts(91, [100, 81, 64, 49] * 3)
NUM_TOKENS = 24
SLOW = {"l1": {"num_pages": 128, "copy_delay_s": 4e-3}}


async def test_rows_wait_for_each_layer_of_a_slow_load(references: References, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = references(Family.QWEN2)
    config = engine_config(reference.folder, cache=SLOW)
    wait_layer = CpuTransfers.wait_layer
    awaited: list[tuple[int, int]] = []

    def count_and_wait(self: CpuTransfers, transfer_id: int, layer: int) -> None:
        awaited.append((transfer_id, layer))
        wait_layer(self, transfer_id, layer)

    monkeypatch.setattr(CpuTransfers, "wait_layer", count_and_wait)
    async with in_process_engine(config) as engine:
        await reach(engine, config, State.L2, PROMPTS)
        outputs = await run(engine, PROMPTS, NUM_TOKENS)
        await assert_all_exact(engine, reference.expect(PROMPTS), outputs)
        assert count_tokens(outputs, "l2") > 0
        await engine.check()

    assert {layer for _, layer in awaited} == {0, 1}


async def test_comparison_fails_if_rows_do_not_wait(references: References, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = references(Family.QWEN2)
    config = engine_config(reference.folder, cache=SLOW)

    def no_wait(*_: Any) -> None:
        return None

    monkeypatch.setattr(CpuTransfers, "wait_layer", no_wait)
    async with in_process_engine(config) as engine:
        await reach(engine, config, State.L2, PROMPTS)
        outputs = await run(engine, PROMPTS, NUM_TOKENS)
        with pytest.raises(AssertionError, match=r"token \d+ is \d+, not \d+"):
            await assert_all_exact(engine, reference.expect(PROMPTS), outputs)
