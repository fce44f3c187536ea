"""Prompts are scored by the logits before each token, whatever the step is like."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from raydix.runtime.messages.plan import DeviceSampling, PromptLogprobs, StepResult
from raydix.runtime.model.checkpoint.checkpoint import LoadedModel
from raydix.runtime.model.steps import prompt_logprobs
from tests.runtime.model.steps.plan_driver import GREEDY, PlanDriver, Row
from tests.runtime.model.steps.uncaptured_steps import without_graphs

PROMPT = np.random.default_rng(13).integers(0, 199, 90).tolist()
NUM_TOP = 3
SCORED = replace(GREEDY, num_prompt_logprobs=NUM_TOP)


@pytest.fixture
def expected(small_model: LoadedModel) -> torch.Tensor:
    """[tokens, V]: what a request for each of the prompt's beginnings samples from."""
    driver = PlanDriver(small_model, page_size=16, num_pages=2000, max_slots=len(PROMPT))
    driver.record_logits()
    requests = [driver.add(slot, PROMPT[: slot + 1]) for slot in range(len(PROMPT))]
    driver.step([Row(request=request, num_tokens=request.num_tokens) for request in requests])
    [logits] = driver.logits
    return logits.log_softmax(-1)


def results_of(
    driver: PlanDriver, sampling: DeviceSampling, chunks: list[int], **options: int
) -> list[StepResult]:
    """A prompt in chunks."""
    request = driver.add(0, PROMPT, sampling=sampling, **options)
    return [
        driver.step([Row(request=request, num_tokens=chunk)]).to_result(0, step, 0.0)
        for step, chunk in enumerate(chunks)
    ]


def check(entry: PromptLogprobs, expected: torch.Tensor, num_top: int = NUM_TOP) -> range:
    """Compare with the definition; returns the positions that the entry tells of."""
    positions = range(entry.start, entry.start + len(entry))
    own = expected[entry.start - 1 : positions.stop - 1]
    ids = torch.tensor(PROMPT[entry.start : positions.stop])
    wanted = own[torch.arange(len(ids)), ids]
    top = own.topk(num_top, dim=-1)

    found = torch.from_numpy(entry.logprob_bits.view(np.float32).copy())
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    assert entry.ranks.tolist() == ((own > wanted[:, None]).sum(-1) + 1).tolist()
    assert entry.num_top == num_top
    assert entry.top_ids.tolist() == top.indices.reshape(-1).tolist()
    found = torch.from_numpy(entry.top_logprob_bits.view(np.float32).copy())
    torch.testing.assert_close(found, top.values.reshape(-1), atol=1e-4, rtol=1e-4)
    return positions


@pytest.mark.parametrize("chunks", [[90], [16, 32, 42], [1, 88, 1], [89, 1]])
@pytest.mark.parametrize("is_captured", [False, True])
@pytest.mark.parametrize("block_rows", [7, 64])
def test_chunks_tell_every_token_but_the_first_once(
    small_model: LoadedModel,
    expected: torch.Tensor,
    chunks: list[int],
    is_captured: bool,
    block_rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prompt_logprobs, "BLOCK_ROWS", block_rows)
    driver = PlanDriver(small_model)
    steps = without_graphs(driver.runner) if is_captured else None

    results = results_of(driver, SCORED, chunks)

    told = [
        position
        for result in results
        for entry in result.prompt_logprobs
        for position in check(entry, expected)
    ]
    assert told == list(range(1, len(PROMPT)))
    assert all(result.scored_slots.tolist() in ([0], []) for result in results)
    if steps is not None:
        assert len(steps.replayed) == len(chunks)


def test_the_logits_of_a_block_at_most_exist_at_once(
    small_model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_logprobs, "BLOCK_ROWS", 8)
    driver = PlanDriver(small_model)
    driver.record_logits()

    results_of(driver, SCORED, [90])

    assert max(len(logits) for logits in driver.logits) == 8


def test_what_is_known_is_not_scored_again(
    small_model: LoadedModel, expected: torch.Tensor
) -> None:
    [result] = results_of(PlanDriver(small_model), SCORED, [90], num_scored=50)
    [entry] = result.prompt_logprobs
    assert check(entry, expected) == range(51, 90)

    [result] = results_of(PlanDriver(small_model), SCORED, [90], num_scored=89)
    assert result.prompt_logprobs == ()


@pytest.mark.parametrize("is_captured", [False, True])
def test_rows_beside_each_other_get_their_own(
    small_model: LoadedModel, expected: torch.Tensor, is_captured: bool
) -> None:
    driver = PlanDriver(small_model)
    steps = without_graphs(driver.runner) if is_captured else None
    wants = [GREEDY, replace(GREEDY, num_prompt_logprobs=0), SCORED]
    requests = [driver.add(slot, PROMPT[:40], sampling=each) for slot, each in enumerate(wants)]

    rows = [Row(request=request, num_tokens=40) for request in requests]
    result = driver.step(rows).to_result(0, 0, 0.0)

    assert result.scored_slots.tolist() == [1, 2]
    assert check(result.prompt_logprobs[0], expected, 0) == range(1, 40)
    assert check(result.prompt_logprobs[1], expected) == range(1, 40)
    # What they generate is not of their prompts, nor is what the slot's next request has.
    assert steps is None or len(steps.replayed) == 1
    rows = [Row(request=request, num_tokens=1) for request in requests]
    assert driver.step(rows).to_result(0, 1, 0.0).prompt_logprobs == ()
    driver.remove(requests[2])
    plain = driver.add(2, PROMPT)
    result = driver.step([Row(request=plain, num_tokens=90)]).to_result(0, 2, 0.0)
    assert result.prompt_logprobs == ()


def test_output_that_is_computed_again_is_not_scored(
    small_model: LoadedModel, expected: torch.Tensor
) -> None:
    [result] = results_of(PlanDriver(small_model), SCORED, [90], num_prompt_tokens=60)
    [entry] = result.prompt_logprobs
    assert check(entry, expected) == range(1, 60)


def test_a_prompt_of_one_token_has_nothing_to_score(small_model: LoadedModel) -> None:
    driver = PlanDriver(small_model)
    request = driver.add(0, [5], sampling=SCORED)
    result = driver.step([Row(request=request, num_tokens=1)]).to_result(0, 0, 0.0)
    assert result.prompt_logprobs == ()
    assert len(result.token_ids) == 1
