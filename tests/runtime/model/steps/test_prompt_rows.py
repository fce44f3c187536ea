"""Rows of prompts whose numbers are not finite are told of, whether they sample or not."""

import numpy as np
import pytest
import torch

from raydix.runtime.model.checkpoint.checkpoint import LoadedModel
from raydix.runtime.model.steps.prompt_rows import HiddenSums
from raydix.runtime.model.steps.step_rows import StepRows
from tests.runtime.model.steps.plan_driver import GREEDY, PlanDriver, Row
from tests.runtime.model.steps.test_cuda import SPEC, make_plans, run
from tests.runtime.model.steps.test_halved_steps import make_group_of_one, make_runner
from tests.runtime.model.steps.uncaptured_steps import without_graphs

BROKEN_TOKEN = 198
PROMPT = [each % BROKEN_TOKEN for each in range(60)]
BROKEN = [*PROMPT[:30], BROKEN_TOKEN, *PROMPT[31:]]


@pytest.mark.parametrize("is_captured", [False, True])
def test_chunks_from_the_first_number_that_is_not_finite_on_are_told_of(
    small_model: LoadedModel, is_captured: bool
) -> None:
    driver = PlanDriver(small_model)
    steps = without_graphs(driver.runner) if is_captured else None
    small_model.decoder.embedding.table.matrix_OC[BROKEN_TOKEN] = float("nan")
    requests = [driver.add(3, PROMPT), driver.add(5, BROKEN)]

    told = []
    for chunk in (20, 20, 19, 1):
        rows = [Row(request=each, num_tokens=chunk) for each in requests]
        told.append(driver.step(rows).to_result(0, 0, 0.0).not_finite_slots.tolist())

    # The last token of a prompt samples, and its logits tell.
    assert told == [[], [5], [5], []]
    assert steps is None or len(steps.replayed) == 4


def test_the_second_half_of_a_row_is_told_of() -> None:
    decoder = make_group_of_one(SPEC, torch.device("cpu"))
    plans = make_plans((GREEDY,) * 3)[:1]
    [prompt, *others] = [each.token_ids.tolist() for each in plans[0].added]
    in_no_other = next(token for token in reversed(prompt) if not any(token in o for o in others))
    decoder.embedding.table.matrix_OC[in_no_other] = float("nan")

    for is_halved in (False, True):
        [output] = run(make_runner(decoder, is_halved=is_halved), plans)
        assert output.to_result(0, 0, 0.0).not_finite_slots.tolist() == [0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_each_row_is_judged_by_its_own_tokens(value: float) -> None:
    def column(*values: int) -> np.ndarray:
        return np.array(values, dtype=np.int64)

    rows = StepRows(
        slots=column(7, 2, 9, 4),
        starts=column(0, 5, 8, 3),
        num_tokens=column(2, 1, 1, 3),
        write_starts=column(0, 5, 8, 3),
        output_positions=column(-1, 0, -1, 1),
    )

    def told(broken_token: int) -> list[int]:
        sums = torch.ones(7)
        sums[broken_token] = value
        return HiddenSums(rows, sums).not_finite_slots()

    assert [told(token) for token in range(7)] == [[7], [7], [], [9], [4], [4], [4]]
