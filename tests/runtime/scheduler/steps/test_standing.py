"""Plans that stand: what ranks may repeat, when another plan comes, and what is left out then."""

import random
from collections import Counter
from typing import Any

import pytest

from raydix.errors import AccountingError
from raydix.runtime.messages.plan import DeviceSampling, StepPlan, StepsLeftOut
from raydix.runtime.scheduler.ranks.standing_plan import StandingPlan
from tests.runtime.scheduler.core_driver import CoreDriver


class StandingDriver(CoreDriver):
    """A core whose only rank repeats plans, until it takes the next one."""

    def __init__(self, *, max_repeats: int = 8, **changes: Any) -> None:
        self.standing = StandingPlan(0)
        super().__init__(max_repeats=max_repeats, **changes)

    def repeat(self, *, token: int | None = None) -> StepPlan:
        """The rank makes one more step of the plan that stands, whether or not another waits."""
        return self._carry_out(self.standing.repeat(), token)

    def _carry_out(self, plan: StepPlan, token: int | None) -> StepPlan:
        """Make a step before the plans that wait."""
        waiting = list(self.plans[0])
        self.plans[0].clear()
        self._take_plan(0, plan)
        done = super().step(token=token)
        self.plans[0].extendleft(reversed(waiting))
        return done

    def step(self, lane: int = 0, *, token: int | None = None, seconds: float = 0.01) -> StepPlan:
        """The rank carries the next plan out, or repeats the last one if there is none."""
        if not self.plans[0]:
            return self.repeat(token=token)
        taken = self.standing.take(self.plans[0].popleft())
        if taken.left_out is not None:
            self.report(0, taken.left_out)
        return self._carry_out(taken.plan, token)

    def run(self) -> None:
        """Carry everything out."""
        while self.plans[0] or self.standing.may_repeat:
            self.step()


def standing_driver(**changes: Any) -> StandingDriver:
    """A request decodes, and its plan has just been sent; the rank has made one step of it."""
    driver = StandingDriver(**changes)
    driver.submit([1, 2, 3], max_tokens=60, name="first", stop_token_ids=(9,))
    while not driver.standing.may_repeat:
        driver.step()
    return driver


def test_a_rank_that_only_decodes_needs_another_plan_once_half_of_the_steps_are_left() -> None:
    driver = standing_driver(max_repeats=8)
    num_before = len(driver.answers["first"].tokens)

    num_plans = [len(driver.plans[0])]
    for _ in range(4):
        driver.repeat()
        num_plans.append(len(driver.plans[0]))

    assert num_plans == [0, 0, 0, 0, 1]
    assert len(driver.answers["first"].tokens) == num_before + 4


def test_a_request_that_comes_brings_the_next_plan_at_once() -> None:
    driver = standing_driver()

    driver.submit([7, 8, 9], max_tokens=3, name="second")

    assert driver.rows(driver.plans[0][0]) == {"first": 1, "second": 3}
    driver.repeat()
    driver.run()
    assert driver.answers["first"].tokens == [1] * 60
    assert driver.answers["second"].tokens == [1] * 3
    assert driver.core.is_idle


def test_what_was_computed_past_a_stop_is_told_to_nobody_and_cached_for_nobody() -> None:
    driver = standing_driver(num_pages=(40,))
    driver.repeat(token=9)
    told = list(driver.answers["first"].tokens)
    assert driver.answers["first"].ending == "stop"

    # They were on the device already.
    for token in (5, 6, 5, 6, 5):
        driver.repeat(token=token)
    driver.run()

    assert driver.answers["first"].tokens == told
    assert driver.core.is_idle
    follow_up = driver.submit([1, 2, 3, *told, 5, 6, 5, 6, 5], max_tokens=1)
    driver.run()
    num_cached = (3 + len(told) - 1) // 4 * 4
    assert (driver.answers[follow_up].sources or {})["l1"] == num_cached


def test_a_rank_whose_requests_have_all_ended_is_told_to_stop() -> None:
    driver = standing_driver()

    driver.abort("first")

    [plan] = driver.plans[0]
    assert not len(plan.row_slots)
    driver.step()
    assert not driver.standing.may_repeat
    assert driver.core.is_idle


def test_each_row_goes_on_as_long_as_it_has_tokens_to_sample() -> None:
    driver = StandingDriver(max_repeats=8)
    lengths = {driver.submit([length], max_tokens=length): length for length in (7, 12, 50)}
    repeats: list[tuple[int, int]] = []
    while driver.plans[0] or driver.standing.may_repeat:
        for plan in driver.plans[0]:
            names = list(driver.rows(plan))
            for name, position, num in zip(
                names[: len(plan.row_repeats)],
                plan.row_output_positions.tolist(),
                plan.row_repeats.tolist(),
                strict=False,
            ):
                repeats.append((num, min(8, lengths[name] - 1 - position)))
        driver.step()

    assert {most for _, most in repeats} > {0, 8}
    assert all(num == most for num, most in repeats)
    assert [len(driver.answers[name].tokens) for name in lengths] == [7, 12, 50]


def test_pages_are_there_for_every_step_for_which_a_plan_stands() -> None:
    # Of 8 pages of 4 tokens each of the two would need 5.
    driver = StandingDriver(max_repeats=16, num_pages=(8,), max_model_len=20)
    for name in ("first", "second"):
        driver.submit([1, 2, len(name)], max_tokens=14, name=name)
    rooms: Counter[int] = Counter()
    ends: list[tuple[int, int]] = []
    while driver.plans[0] or driver.standing.may_repeat:
        if driver.plans[0]:
            plan = driver.plans[0][0]
            for changes in plan.tables:
                columns = changes.slots, changes.starts, changes.counts
                for slot, start, count in zip(*map(list, columns), strict=True):
                    rooms[slot] = 4 * (start + count)
            last = (plan.row_starts + plan.row_repeats).tolist() if len(plan.row_repeats) else ()
            ends += [(end, rooms[slot]) for slot, end in zip(plan.row_slots, last, strict=False)]
        driver.step()

    assert ends
    assert all(end < room for end, room in ends)
    assert [len(answer.tokens) for answer in driver.answers.values()] == [14, 14]


@pytest.mark.parametrize(
    ("changes", "sampling"),
    [
        ({}, DeviceSampling(seed=0, num_logprobs=0)),
        ({"ranks_per_lane": 2}, DeviceSampling(seed=0)),
        ({"num_lanes": 2, "lanes_per_group": 2}, DeviceSampling(seed=0)),
    ],
    ids=["logprobs", "two ranks", "two lanes that step together"],
)
def test_each_step_has_a_plan_of_its_own(changes: dict[str, int], sampling: DeviceSampling) -> None:
    driver = CoreDriver(max_repeats=8, **changes)
    driver.submit([1, 2, 3], max_tokens=6, name="first", sampling=sampling)
    while driver.plans[0]:
        for lane in range(driver.settings.num_lanes):
            assert not driver.step(lane).num_repeats
    assert driver.answers["first"].tokens == [1] * 6


def test_steps_that_are_not_repetitions_cannot_be_left_out() -> None:
    driver = StandingDriver()
    driver.submit([1, 2, 3], max_tokens=9)

    with pytest.raises(AccountingError, match="leaves out"):
        driver.report(0, StepsLeftOut(rank=0, step=driver.plans[0][0].step, num_steps=1))


@pytest.mark.parametrize("seed", range(20))
def test_random_requests_get_exactly_their_tokens_from_ranks_that_repeat(seed: int) -> None:
    draw = random.Random(seed)
    driver = StandingDriver(
        max_repeats=draw.choice([1, 3, 16]),
        num_pages=(draw.choice([20, 40]),),
        max_running_requests=draw.choice([2, 8]),
    )

    def token_of(name: str, position: int) -> int:
        return (7 * position + len(name)) % 5

    driver.token_of = token_of  # type: ignore[method-assign]
    for index in range(12):
        prompt = [draw.randrange(3) for _ in range(draw.randrange(1, 20))]
        name = f"{'r' * (index % 3)}{index}"
        driver.submit(prompt, max_tokens=draw.randrange(1, 40), name=name)
        for _ in range(draw.randrange(12)):
            if driver.standing.may_repeat and draw.random() < 0.3:
                driver.repeat()
            elif driver.plans[0] or driver.standing.may_repeat:
                driver.step()
        if draw.random() < 0.2 and name not in driver.answers:
            driver.abort(name)
    driver.run()

    for name, answer in driver.answers.items():
        expected = [(7 * position + len(name)) % 5 for position in range(len(answer.tokens))]
        assert answer.tokens == expected
        assert answer.ending in ("length", "abort")
    assert driver.core.is_idle
