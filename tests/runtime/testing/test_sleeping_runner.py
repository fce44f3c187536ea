from functools import partial

import numpy as np

from raydix.runtime.api.sampling_params import SamplingParams
from raydix.runtime.config.loading import load_config
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import StepPlan
from raydix.runtime.testing.engine import in_process_engine
from raydix.runtime.testing.sleeping_runner import (
    VOCAB_SIZE,
    SleepingRunner,
    build_sleeping_model,
)


def _tokens(
    slots: list[int], starts: list[int], num_tokens: list[int], outputs: list[int]
) -> list[int]:
    plan = StepPlan(
        step=1,
        row_slots=int32_array(slots),
        row_starts=int32_array(starts),
        row_num_tokens=int32_array(num_tokens),
        row_output_positions=int32_array(outputs),
    )
    result = SleepingRunner(0.0).execute(plan, lambda *_: None).to_result(0, 1, 0.0)
    return result.token_ids.tolist()


def test_tokens_depend_on_slot_and_position_alone() -> None:
    together = _tokens([1, 2, 3], [4, 0, 9], [1, 10, 1], [0, 0, 5])

    assert together == [
        _tokens([1], [0], [5], [3])[0],
        _tokens([2], [9], [1], [7])[0],
        _tokens([3], [9], [1], [0])[0],
    ]
    assert len(set(together)) == 3


def test_rows_that_sample_nothing_have_no_token() -> None:
    assert len(_tokens([1, 2], [0, 0], [4, 4], [-1, 0])) == 1


def test_tokens_are_in_the_vocabulary_at_any_position() -> None:
    tokens = np.array(_tokens([4095] * 2, [(1 << 20) - 2, (1 << 20) - 1], [1, 1], [0, 1]))

    assert ((tokens >= 0) & (tokens < VOCAB_SIZE)).all()


async def test_an_engine_has_eight_steps_of_a_request_alone_made_by_one_plan() -> None:
    # A token depends on slot and position: one that was computed twice, or left out, would show.
    config = load_config(
        {"model": {"path": "none"}, "cache": {"l1": {"num_pages": 64}, "l2": None}},
    )
    tokens: list[int] = []
    async with in_process_engine(config, partial(build_sleeping_model, step_s=0.0)) as engine:
        greedy = SamplingParams(temperature=0.0, max_tokens=161)
        async for output in engine.client.generate([1, 2, 3], greedy):
            tokens = list(output.outputs[0].token_ids)
        num_plans = (await engine.stats())["scheduler"]["num_plans"]

    first = tokens[0]
    expected = [(first + place * 104_729) % VOCAB_SIZE for place in range(161)]
    assert tokens == expected
    assert num_plans <= 161 / 8 + 4
