"""Slow copies that end out of order: rows wait for the layers that they read."""

import random
from functools import partial
from typing import Any

import pytest
import torch

from raydix.runtime.actors import torch_model
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.model.families.table import Family
from raydix.runtime.testing.engine import in_process_engine
from raydix.runtime.tiers.cpu_transfers import CpuTransfers
from raydix.runtime.tiers.cuda_transfers import CudaTransfers
from raydix.runtime.tiers.transfers import Transfer
from tests.exactness.engines import (
    DEVICES,
    assert_all_exact,
    count_tokens,
    engine_config,
    make_prompts,
    run,
)
from tests.exactness.reference import Reference, References
from tests.exactness.states import State, reach

PROMPTS = make_prompts(91, [100, 81, 64, 49] * 3)
NUM_TOKENS = 24
MAX_SPIN_CYCLES = 20_000_000
"""About 10 ms."""
TRANSFERS = {"cpu": CpuTransfers, "cuda": CudaTransfers}


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the model runs; copies are slow on both, on cuda because their streams are held up."""
    rng = random.Random(5)

    def spin(transfer: Transfer) -> None:
        torch.cuda._sleep(rng.randrange(MAX_SPIN_CYCLES))

    monkeypatch.setattr(torch_model, "CudaTransfers", partial(CudaTransfers, delay=spin))
    return str(request.param)


def slow_config(reference: Reference, device: str) -> EngineConfig:
    """Every page that L2 has is loaded, however long it takes."""
    l1 = {"num_pages": 128} | ({"copy_delay_s": 4e-3} if device == "cpu" else {})
    return engine_config(
        reference.folder,
        model={"device": device, "dtype": "float32"},
        cache={"l1": l1, "load": "always"},
    )


@pytest.mark.parametrize("family", [Family.QWEN2, Family.GEMMA2, Family.DEEPSEEK_V2])
async def test_rows_wait_for_each_layer_of_a_slow_load(
    family: Family, references: References, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = references(family)
    config = slow_config(reference, device)
    wait_layer = TRANSFERS[device].wait_layer
    awaited: list[tuple[int, int]] = []

    def count_and_wait(self: Any, transfer_id: int, layer: int) -> None:
        awaited.append((transfer_id, layer))
        wait_layer(self, transfer_id, layer)

    monkeypatch.setattr(TRANSFERS[device], "wait_layer", count_and_wait)
    async with in_process_engine(config) as engine:
        await reach(engine, config, State.L2, PROMPTS)
        outputs = await run(engine, PROMPTS, NUM_TOKENS)
        await assert_all_exact(engine, reference.expect(PROMPTS), outputs)
        assert count_tokens(outputs, "l2") > 0
        await engine.check()

    assert {layer for _, layer in awaited} == {0, 1}


@pytest.mark.parametrize("family", [Family.QWEN2, Family.GEMMA2, Family.DEEPSEEK_V2])
async def test_comparison_fails_if_rows_do_not_wait(
    family: Family, references: References, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = references(family)
    config = slow_config(reference, device)

    def no_wait(*_: Any) -> None:
        return None

    monkeypatch.setattr(TRANSFERS[device], "wait_layer", no_wait)
    async with in_process_engine(config) as engine:
        await reach(engine, config, State.L2, PROMPTS)
        outputs = await run(engine, PROMPTS, NUM_TOKENS)
        with pytest.raises(AssertionError, match=r"token \d+ is \d+, not \d+"):
            await assert_all_exact(engine, reference.expect(PROMPTS), outputs)
