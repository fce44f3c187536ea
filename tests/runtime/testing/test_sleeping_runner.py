import numpy as np

from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import StepPlan
from raydix.runtime.testing.sleeping_runner import VOCAB_SIZE, SleepingRunner


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
