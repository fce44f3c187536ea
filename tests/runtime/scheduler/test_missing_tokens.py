"""Numbers that are not finite: the request ends with an error, and nothing else notices."""

from dataclasses import replace
from typing import Any

import pytest

from raydix.ids import NO_TOKEN
from raydix.runtime.messages.arrays import Int32Array, int32_array
from raydix.runtime.messages.plan import DeviceSampling, StepPlan, StepResult, TransfersDone
from tests.runtime.scheduler.core_driver import CoreDriver

LONG = list(range(1, 13))


class BrokenDriver(CoreDriver):
    """Ranks that find no token for `broken` at one output position."""

    broken_position = 0

    def token_of(self, name: str, position: int) -> int:
        is_broken = name == "broken" and position >= self.broken_position
        return NO_TOKEN if is_broken else 1


class BrokenPromptDriver(CoreDriver):
    """Ranks that compute numbers that are not finite in one chunk of a prompt of `broken`."""

    def __init__(self, start: int, **changes: Any) -> None:
        self._start = start
        self._not_finite: dict[int, Int32Array] = {}
        super().__init__(prefill_budget_tokens=4, **changes)

    def _take_plan(self, lane: int, plan: StepPlan) -> None:
        super()._take_plan(lane, plan)
        rows = zip(self.rows(plan), plan.row_slots, plan.row_starts, strict=True)
        self._not_finite[plan.step] = int32_array(
            [slot for name, slot, start in rows if name == "broken" and start == self._start]
        )

    def report(self, rank: int, message: StepResult | TransfersDone) -> None:
        if isinstance(message, StepResult):
            message = replace(message, not_finite_slots=self._not_finite[message.step])
        super().report(rank, message)


@pytest.mark.parametrize("position", [0, 1, 3])
@pytest.mark.parametrize("num_logprobs", [None, 0])
def test_a_request_without_a_token_fails_and_the_others_go_on(
    position: int, num_logprobs: int | None
) -> None:
    driver = BrokenDriver()
    driver.broken_position = position
    sampling = DeviceSampling(seed=0, num_logprobs=num_logprobs)
    driver.submit(LONG, name="broken", max_tokens=6, sampling=sampling)
    other = driver.submit([7, 8, 9], max_tokens=6)

    driver.run()

    assert driver.answers["broken"].ending == "ModelFailed"
    assert driver.answers["broken"].tokens == [1] * position
    assert driver.answers[other].ending == "length"
    assert driver.answers[other].tokens == [1] * 6


def test_what_a_step_without_a_token_computed_is_not_cached() -> None:
    driver = BrokenDriver()
    driver.submit(LONG, name="broken")
    driver.run()
    again = driver.submit(LONG)
    driver.run()
    assert driver.answers["broken"].ending == "ModelFailed"
    sources = driver.answers[again].sources
    assert sources is not None
    assert "l1" not in sources


@pytest.mark.parametrize("start", [0, 4, 8])
def test_a_chunk_that_is_not_finite_is_never_hit_though_it_samples_nothing(start: int) -> None:
    driver = BrokenPromptDriver(start)
    driver.submit(LONG, name="broken")
    follower = driver.submit(LONG)

    driver.run()

    assert driver.answers["broken"].ending == "ModelFailed"
    assert driver.answers["broken"].tokens == []
    assert driver.answers[follower].ending == "length"
    sources = driver.answers[follower].sources
    assert sources is not None
    assert sources.get("l1", 0) <= start, "chunks before it were fine"


def test_no_page_of_a_chunk_that_is_not_finite_goes_to_l2() -> None:
    driver = BrokenPromptDriver(4, has_host_memory=True)
    driver.grant(8)
    driver.submit(LONG, name="broken")

    driver.run()

    assert driver.in_l2(0, driver.keys(LONG)) == [True, False, False]
