"""Captured steps on a GPU whose rows wait for loads, layer by layer."""

from dataclasses import replace

import pytest
import torch

from raydix.ids import RequestId, Slot
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import AddedRequest, StepPlan, TableChanges
from raydix.runtime.model.steps.runner import ModelRunner
from tests.runtime.model.steps.captured_runner import (
    LOGPROBS,
    SPEC,
    TOKENS,
    fresh,
    start,
    start_all,
    step,
)

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("num_tokens", [1, 2, 16, 65, 128])
def test_an_extension_behind_a_load_gives_what_it_gives_without(
    runners: tuple[ModelRunner, ModelRunner], num_tokens: int
) -> None:
    """Its prefix comes into the pool a layer at a time, and each layer waits for its own alone."""
    _, captured = runners
    context = 512
    tolerance = 1e-4 if captured._pools[0].dtype == torch.float32 else 0.15
    start(captured, context + num_tokens)
    pool = captured._pools[0]
    pool.zero_()
    step(captured, 0, context, -1)
    stored = pool.clone()
    expected = step(captured, context, num_tokens, 0)
    expected_pool = pool[1:].float()
    pool.zero_()

    def arrive(load: int, layer: int) -> None:
        pool[:, layer] = stored[:, layer]

    result = step(captured, context, num_tokens, 0, arrive)

    torch.testing.assert_close(pool[1:].float(), expected_pool, atol=tolerance, rtol=tolerance)
    entry, other = result.logprobs[0], expected.logprobs[0]
    assert entry is not None
    assert other is not None
    assert entry.logprobs == pytest.approx(other.logprobs, abs=tolerance)


@pytest.mark.parametrize("num_tokens", [2, 130, 300, 1000])
def test_a_prompt_beside_decodes_is_replayed_layer_by_layer(
    runners: tuple[ModelRunner, ModelRunner], num_tokens: int
) -> None:
    """Its cached prefix comes into the pool a layer at a time, as a load would bring it."""
    is_float32 = runners[0]._pools[0].dtype == torch.float32
    tolerance = 1e-4 if is_float32 else 0.15
    found = []
    for runner in runners:
        plan, pages = start_beside_decodes(runner, num_tokens)
        pool = runner._pools[0]
        stored = pool[pages].clone()
        pool[pages] = 0
        waits: list[int] = []

        def arrive(load: int, layer: int) -> None:
            waits.append(layer)  # noqa: B023
            pool[pages, layer] = stored[:, layer]  # noqa: B023

        result = runner.execute(plan, arrive).to_result(0, 0, 0.0)
        assert waits == list(range(SPEC.num_layers))
        found.append((result, pool[1:].float()))

    (expected, expected_pool), (result, pool) = found
    torch.testing.assert_close(pool, expected_pool, atol=tolerance, rtol=tolerance)
    for entry, other in zip(result.logprobs, expected.logprobs, strict=True):
        assert entry is not None
        assert other is not None
        assert entry.logprobs == pytest.approx(other.logprobs, abs=tolerance)


def start_beside_decodes(runner: ModelRunner, num_tokens: int) -> tuple[StepPlan, torch.Tensor]:
    """A plan of two decodes and a prompt behind a cached prefix, and the pages of that prefix."""
    page_size, prefix = runner.slots.page_size, 64
    decodes = start_all(fresh(runner), (LOGPROBS,) * 2, 40)
    step_all(
        runner,
        replace(
            decodes,
            row_starts=decodes.row_starts * 0,
            row_write_starts=decodes.row_write_starts * 0,
            row_num_tokens=decodes.row_num_tokens * 39,
            row_output_positions=int32_array([-1, -1]),
        ),
    )

    first_page = 2 * (40 // page_size + 2) + 1
    num_pages = (prefix + num_tokens) // page_size + 1
    pages = range(first_page, first_page + num_pages)
    added = AddedRequest(
        slot=Slot(2),
        request_id=RequestId("2"),
        token_ids=int32_array(TOKENS[1, : prefix + num_tokens]),
        num_prompt_tokens=prefix + num_tokens,
        sampling=LOGPROBS,
    )
    table = TableChanges(
        slots=int32_array([2]),
        starts=int32_array([0]),
        counts=int32_array([num_pages]),
        page_ids=int32_array(pages),
    )
    runner.apply(StepPlan(step=1, added=(added,), tables=(table,)))
    whole = replace(
        decodes,
        row_slots=int32_array([2]),
        row_starts=int32_array([0]),
        row_num_tokens=int32_array([prefix]),
        row_write_starts=int32_array([0]),
        row_output_positions=int32_array([-1]),
        row_loads=int32_array([-1]),
    )
    step_all(runner, whole)
    mixed = replace(
        decodes,
        row_slots=int32_array([2, 0, 1]),
        row_starts=int32_array([prefix, 39, 39]),
        row_num_tokens=int32_array([num_tokens, 1, 1]),
        row_write_starts=int32_array([prefix, 39, 39]),
        row_output_positions=int32_array([0, 0, 0]),
        row_loads=int32_array([5, -1, -1]),
    )
    return mixed, torch.tensor(list(pages)[: prefix // page_size], device="cuda")


def step_all(runner: ModelRunner, plan: StepPlan) -> None:
    runner.execute(plan, lambda load, layer: None).to_result(0, 0, 0.0)
