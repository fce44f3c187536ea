"""Captured steps of a model that keeps states do on a GPU what their operations do."""

from pathlib import Path

import numpy as np
import pytest
import torch

from raydix.runtime.model.checkpoint.checkpoint import load_model
from tests.runtime.model.steps.plan_driver import PlanDriver, Row, tokens_of

pytestmark = pytest.mark.gpu
PROMPT = np.random.default_rng(5).integers(0, 199, 90).tolist()


@pytest.fixture
def drivers(state_checkpoint: Path) -> tuple[PlanDriver, PlanDriver]:
    """One enqueues operation by operation, the other replays."""
    device = torch.device("cuda")
    eager, captured = (
        PlanDriver(
            load_model(state_checkpoint, device=device, dtype=torch.float32),
            page_size=16,
            num_pages=200,
            max_slots=8,
            device=device,
        )
        for _ in range(2)
    )
    captured.runner.capture_graphs()
    return eager, captured


def assert_same_pools(drivers: tuple[PlanDriver, PlanDriver]) -> None:
    for pools in zip(*(driver.pools for driver in drivers), strict=True):
        torch.testing.assert_close(*(pool[1:] for pool in pools), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("num_cached", [88, 80, 77, 41, 0])
def test_a_replayed_extension_changes_states_as_its_operations_do(
    drivers: tuple[PlanDriver, PlanDriver], num_cached: int
) -> None:
    tokens = []
    for driver in drivers:
        request = driver.add(0, PROMPT)
        if num_cached:
            driver.step([Row(request=request, num_tokens=num_cached)])
        tokens.append(tokens_of(driver.step([Row(request=request, num_tokens=90 - num_cached)])))

    assert tokens[0] == tokens[1]
    assert_same_pools(drivers)


def test_replayed_prompts_beside_decodes_change_states_as_their_operations_do(
    drivers: tuple[PlanDriver, PlanDriver],
) -> None:
    tokens = []
    for driver in drivers:
        decoding = [driver.add(slot, PROMPT[slot:40]) for slot in range(3)]
        rows = [Row(request=each, num_tokens=each.num_prompt_tokens) for each in decoding]
        tokens += [tokens_of(driver.step(rows))]

        long, short = driver.add(3, PROMPT), driver.add(4, PROMPT[7:70])
        for taken in (30, 33):
            singles = [Row(request=each, num_tokens=1) for each in decoding]
            prompts = Row(request=long, num_tokens=taken), Row(request=short, num_tokens=taken - 5)
            tokens += [tokens_of(driver.step([prompts[0], *singles, prompts[1]]))]
        everyone = [*decoding, short]
        for _ in range(20):
            singles = [Row(request=each, num_tokens=1) for each in everyone]
            tokens += [tokens_of(driver.step(singles))]

    half = len(tokens) // 2
    assert tokens[:half] == tokens[half:]
    assert_same_pools(drivers)
