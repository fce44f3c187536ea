from typing import Any

import pytest

from raydix.errors import AccountingError
from raydix.ids import RequestId, Slot
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import AddedRequest, DeviceSampling, StepPlan, StepsLeftOut
from raydix.runtime.scheduler.ranks.standing_plan import StandingPlan


def plan(
    step: int, begins: dict[int, int], repeats: list[int] | None = None, **more: Any
) -> StepPlan:
    """Rows of one token in these slots, from these positions; the prompts have 10 tokens."""
    starts = int32_array(begins.values())
    return StepPlan(
        step=step,
        row_slots=int32_array(begins),
        row_starts=starts,
        row_num_tokens=int32_array([1] * len(begins)),
        row_write_starts=starts,
        row_output_positions=int32_array(start - 9 for start in begins.values()),
        row_loads=int32_array([-1] * len(begins)),
        row_repeats=int32_array(repeats or ()),
        **more,
    )


def begins_of(carried_out: StepPlan) -> dict[int, int]:
    """Where each slot's row begins; all columns say the same."""
    starts = carried_out.row_starts.tolist()
    assert carried_out.row_write_starts.tolist() == starts
    assert carried_out.row_output_positions.tolist() == [start - 9 for start in starts]
    return dict(zip(carried_out.row_slots.tolist(), starts, strict=True))


def test_each_repetition_is_one_token_further_and_rows_end_one_by_one() -> None:
    standing = StandingPlan(0)

    assert begins_of(standing.take(plan(7, {0: 40, 3: 12}, [2, 1])).plan) == {0: 40, 3: 12}
    steps = []
    while standing.may_repeat:
        steps.append(standing.repeat())

    assert [step.step for step in steps] == [8, 9]
    assert [begins_of(step) for step in steps] == [{0: 41, 3: 13}, {0: 42}]
    taken = standing.take(plan(10, {0: 43, 3: 14}))
    assert taken.left_out is None
    assert begins_of(taken.plan) == {0: 43, 3: 14}
    assert not standing.may_repeat


def test_a_plan_that_comes_ends_what_stands_and_goes_on_from_there() -> None:
    standing = StandingPlan(2)
    standing.take(plan(7, {0: 40, 3: 12, 5: 20}, [5, 5, 1]))
    standing.repeat()

    # Written as if slots 0 and 3 had made five steps more, and slot 5 one.
    taken = standing.take(plan(13, {0: 46, 3: 18, 5: 22}))

    assert taken.left_out == StepsLeftOut(rank=2, step=9, num_steps=4)
    assert begins_of(taken.plan) == {0: 42, 3: 14, 5: 22}


def test_plans_that_were_written_before_the_news_are_put_right_until_it_has_come() -> None:
    standing = StandingPlan(0)
    standing.take(plan(1, {0: 40}, [4]))

    behind_first = standing.take(plan(6, {0: 45}, [2])).plan
    behind_second = standing.take(plan(9, {0: 48})).plan
    # The Scheduler knows by now that 4 steps of the first were left out, and of the second none.
    with_some_news = standing.take(plan(10, {0: 45})).plan
    with_all_news = standing.take(plan(11, {0: 44})).plan

    plans = (behind_first, behind_second, with_some_news, with_all_news)
    assert [begins_of(each)[0] for each in plans] == [41, 42, 43, 44]


def test_a_slot_that_is_given_to_another_request_begins_as_that_one_is_told() -> None:
    standing = StandingPlan(0)
    standing.take(plan(1, {0: 40}, [4]))
    added = AddedRequest(
        slot=Slot(0),
        request_id=RequestId("r"),
        token_ids=int32_array([1] * 3),
        num_prompt_tokens=3,
        sampling=DeviceSampling(seed=0),
    )

    taken = standing.take(plan(6, {0: 60}, removed_slots=int32_array([0]), added=(added,)))

    assert taken.left_out is not None
    assert begins_of(taken.plan) == {0: 60}


def test_a_plan_without_rows_ends_what_stands() -> None:
    standing = StandingPlan(0)
    standing.take(plan(1, {0: 40}, [4]))

    taken = standing.take(StepPlan(step=6))

    assert taken.left_out == StepsLeftOut(rank=0, step=2, num_steps=4)
    assert not standing.may_repeat


def test_nothing_stands_once_the_scheduler_is_gone() -> None:
    standing = StandingPlan(0)
    standing.take(plan(5, {0: 40}, [4]))

    standing.forget()

    assert not standing.may_repeat
    taken = standing.take(plan(1, {0: 30}))
    assert taken.left_out is None
    assert begins_of(taken.plan) == {0: 30}


def test_a_gap_between_plans_is_refused() -> None:
    standing = StandingPlan(0)
    standing.take(plan(5, {0: 40}, [4]))

    with pytest.raises(AccountingError, match="plan 9; expected 10"):
        standing.take(plan(9, {0: 45}))


def test_a_row_that_begins_before_its_slots_last_one_has_ended_is_refused() -> None:
    standing = StandingPlan(0)
    standing.take(plan(1, {0: 40}, [4]))
    standing.repeat()

    with pytest.raises(AccountingError, match=r"begin at \[41\].* have ended at \[42\]"):
        standing.take(plan(6, {0: 41}))
