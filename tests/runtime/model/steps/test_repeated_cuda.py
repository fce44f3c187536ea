"""Repetitions of captured steps on a GPU sample what steps that are planned one by one do.

They are enqueued one behind another: the tokens of each are on the device alone when the next one
is enqueued.
"""

import numpy as np
import pytest
import torch

from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import DeviceSampling, StepPlan, StepResult
from raydix.runtime.model.decoder.decoder import Decoder
from raydix.runtime.model.steps.runner import ModelRunner
from raydix.runtime.model.steps.step_output import StepOutput
from raydix.runtime.scheduler.ranks.standing_plan import StandingPlan
from tests.runtime.model.steps.captured_runner import MAX_SLOTS, make_runner, start_all

pytestmark = pytest.mark.gpu
NUM_TOKENS, NUM_REPEATS = 40, 15
GREEDY = (DeviceSampling(seed=0),) * MAX_SLOTS
MIXED = (
    DeviceSampling(seed=1),
    DeviceSampling(seed=2, temperature=1.0),
    DeviceSampling(seed=3, temperature=0.8, top_k=50, top_p=0.95),
)
PENALISED = (DeviceSampling(seed=4, temperature=1.0, presence_penalty=0.5), *MIXED[1:])


def each_by_itself(
    runner: ModelRunner, sampling: tuple[DeviceSampling, ...], num_steps: int
) -> list[list[int]]:
    """The tokens of so many steps, each planned by itself and waited for."""
    plan = start_all(runner, sampling, NUM_TOKENS)
    tokens = []
    for number in range(num_steps):
        starts = int32_array(plan.row_starts + number)
        step = StepPlan(
            step=plan.step + number,
            row_slots=plan.row_slots,
            row_starts=starts,
            row_num_tokens=plan.row_num_tokens,
            row_write_starts=starts,
            row_output_positions=int32_array(plan.row_output_positions + number),
            row_loads=plan.row_loads,
        )
        tokens.append(execute(runner, step).token_ids.tolist())
    return tokens


def execute(runner: ModelRunner, plan: StepPlan) -> StepResult:
    runner.apply(plan)
    return runner.execute(plan, lambda load, layer: None).to_result(0, plan.step, 0.0)


def enqueue(runner: ModelRunner, plan: StepPlan) -> StepOutput:
    runner.apply(plan)
    return runner.execute(plan, lambda load, layer: None)


def standing(plan: StepPlan, repeats: list[int]) -> StepPlan:
    return StepPlan(
        step=plan.step,
        row_slots=plan.row_slots,
        row_starts=plan.row_starts,
        row_num_tokens=plan.row_num_tokens,
        row_write_starts=plan.row_write_starts,
        row_output_positions=plan.row_output_positions,
        row_loads=plan.row_loads,
        row_repeats=int32_array(repeats),
    )


@pytest.mark.parametrize("sampling", [GREEDY, MIXED, PENALISED], ids=["greedy", "mixed", "rules"])
@pytest.mark.parametrize("page_size", [16, 64])
def test_repetitions_of_a_captured_step_sample_what_steps_by_themselves_do(
    decoder: Decoder, sampling: tuple[DeviceSampling, ...], page_size: int
) -> None:
    """A page ends within them at 16 tokens a page, and one row ends before the others."""
    alone, repeated = (make_runner(decoder, page_size) for _ in range(2))
    for runner in (alone, repeated):
        runner.capture_graphs()
    expected = each_by_itself(alone, sampling, NUM_REPEATS + 1)

    plans = StandingPlan(0)
    first = standing(start_all(repeated, sampling, NUM_TOKENS), [NUM_REPEATS, 4, NUM_REPEATS])
    outputs = [enqueue(repeated, plans.take(first).plan)]
    while plans.may_repeat:
        outputs.append(enqueue(repeated, plans.repeat()))
    tokens = [output.to_result(0, 0, 0.0).token_ids.tolist() for output in outputs]

    assert len(tokens) == NUM_REPEATS + 1
    assert [len(step) for step in tokens] == [3] * 5 + [2] * (NUM_REPEATS - 4)
    if decoder.dtype == torch.float32:
        assert tokens[:5] == expected[:5]
        assert tokens[5:] == [[step[0], step[2]] for step in expected[5:]]
    else:
        # The same graphs ran as long as there were as many rows.
        assert tokens[:5] == expected[:5]


def test_a_plan_that_cuts_repetitions_short_goes_on_from_the_tokens_on_the_device(
    decoder: Decoder,
) -> None:
    alone, repeated = (make_runner(decoder, 16) for _ in range(2))
    for runner in (alone, repeated):
        runner.capture_graphs()
    expected = each_by_itself(alone, MIXED, 12)

    plans = StandingPlan(0)
    first = start_all(repeated, MIXED, NUM_TOKENS)
    outputs = [enqueue(repeated, plans.take(standing(first, [NUM_REPEATS] * 3)).plan)]
    outputs += [enqueue(repeated, plans.repeat()) for _ in range(3)]
    # The Scheduler has written it as if the first one were repeated to its end.
    late = np.int32(NUM_REPEATS + 1)
    second = StepPlan(
        step=first.step + NUM_REPEATS + 1,
        row_slots=first.row_slots,
        row_starts=int32_array(first.row_starts + late),
        row_num_tokens=first.row_num_tokens,
        row_write_starts=int32_array(first.row_starts + late),
        row_output_positions=int32_array(first.row_output_positions + late),
        row_loads=first.row_loads,
        row_repeats=int32_array([7] * 3),
    )
    outputs.append(enqueue(repeated, plans.take(second).plan))
    while plans.may_repeat:
        outputs.append(enqueue(repeated, plans.repeat()))

    tokens = [output.to_result(0, 0, 0.0).token_ids.tolist() for output in outputs]

    assert tokens == expected
