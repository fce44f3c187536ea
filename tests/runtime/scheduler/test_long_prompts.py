"""A prompt of many chunks keeps nobody out: who comes later is admitted, and shares its steps."""

from dataclasses import replace
from typing import Any

import pytest

from raydix.runtime.config.policies import SchedulingPolicy
from tests.runtime.scheduler.core_driver import GREEDY, CoreDriver

LONG = 4096
BUDGET = 64


def chunked(**changes: Any) -> CoreDriver:
    """Steps take four pages of 16 tokens, so that `LONG` takes 64 of them."""
    settings = {
        "page_size": 16,
        "num_pages": (2000,),
        "max_model_len": 8192,
        "prefill_budget_tokens": BUDGET,
        "max_running_requests": 32,
        "start_prefill_s": 1.0,
    }
    return CoreDriver(**{**settings, **changes})


def prompt(first: int, num_tokens: int) -> list[int]:
    """Tokens that no prompt with another first token has at the same place."""
    return [first + place % 7 for place in range(num_tokens)]


def steps_to_first_token(driver: CoreDriver, name: str, lane: int = 0) -> int:
    """How many steps end before the client has a token of this request."""
    num_steps = 0
    while not (name in driver.answers and driver.answers[name].tokens):
        driver.step(lane)
        num_steps += 1
    return num_steps


def in_chunks(driver: CoreDriver, first: int = 100, **fields: Any) -> str:
    """A long prompt has computed some of its chunks."""
    name = driver.submit(prompt(first, LONG), max_tokens=2, **fields)
    driver.host_turn()
    for _ in range(5):
        driver.step()
    return name


@pytest.mark.parametrize("policy", list(SchedulingPolicy))
def test_a_short_prompt_waits_three_steps_behind_a_long_one(policy: SchedulingPolicy) -> None:
    driver = chunked(policy=policy)
    in_chunks(driver)
    short = driver.submit(prompt(900, 10), max_tokens=2)
    # One runs, one is queued behind it, and then its own.
    assert steps_to_first_token(driver, short) == 3


def test_a_better_priority_has_the_next_steps_for_itself() -> None:
    driver = chunked()
    long = in_chunks(driver)
    urgent = driver.submit(prompt(900, 3 * BUDGET), max_tokens=1, priority=-1000)
    plans = [driver.rows(driver.step()) for _ in range(6)]
    assert [plan.get(urgent, 0) for plan in plans] == [0, 0, BUDGET, BUDGET, BUDGET, 0]
    assert [plan.get(long, 0) for plan in plans] == [BUDGET, BUDGET, 0, 0, 0, BUDGET]


def test_a_worse_priority_waits_for_the_long_prompt_to_end() -> None:
    driver = chunked()
    long = in_chunks(driver)
    later = driver.submit(prompt(900, 10), max_tokens=2, priority=1)
    steps_to_first_token(driver, long)
    assert later not in driver.answers
    driver.run()
    assert driver.answers[later].ending == "length"


def test_short_prompts_that_come_much_later_still_share_the_steps() -> None:
    driver = chunked(ageing_s=1.0)
    in_chunks(driver)
    driver.now_s += 30.0
    short = driver.submit(prompt(900, 10), max_tokens=2)
    assert steps_to_first_token(driver, short) == 3


def test_a_prompt_that_has_waited_for_long_goes_before_a_better_priority() -> None:
    driver = chunked(ageing_s=1.0)
    long = in_chunks(driver)
    driver.now_s += 30.0
    late = driver.submit(prompt(900, 3 * BUDGET), max_tokens=1, priority=-3)
    plans = [driver.rows(driver.step()) for _ in range(20)]
    assert all(plan[long] >= BUDGET * 3 // 4 for plan in plans), "it is thirty levels ahead"
    assert driver.answers[late].ending == "length", "which it is not in priority"


def test_short_prompts_pass_other_long_ones_that_wait() -> None:
    driver = chunked()
    in_chunks(driver)
    others = [driver.submit(prompt(first, LONG), max_tokens=2) for first in (300, 400, 500)]
    short = driver.submit(prompt(900, 10), max_tokens=2)
    assert steps_to_first_token(driver, short) == 3
    running = driver.core._lanes[0].running
    assert not running.keys() & set(others), "they would only hold pages"


def test_a_long_prompt_ends_as_soon_as_its_tokens_and_those_of_the_short_ones_are_computed() -> (
    None
):
    driver = chunked()
    long = driver.submit(prompt(100, LONG), max_tokens=2)
    shorts = [driver.submit(prompt(300 + 10 * one, 16), max_tokens=1) for one in range(12)]
    assert steps_to_first_token(driver, long) == (LONG + 12 * 16) // BUDGET
    assert all(driver.answers[name].ending == "length" for name in shorts)


def test_a_long_prompt_ends_while_short_ones_never_cease() -> None:
    driver = chunked()
    long = driver.submit(prompt(100, LONG), max_tokens=2)
    num_steps = 0
    while long not in driver.answers:
        driver.submit(prompt(20_000 + 10 * num_steps, 40), max_tokens=1)
        driver.step()
        num_steps += 1
    assert num_steps <= LONG / BUDGET / 0.75 + 3


def test_without_a_share_short_prompts_wait_for_the_long_one() -> None:
    driver = chunked(short_prompt_fraction=0.0)
    in_chunks(driver)
    short = driver.submit(prompt(900, 10), max_tokens=2)
    assert steps_to_first_token(driver, short) > LONG // BUDGET - 10


def test_without_chunks_a_long_prompt_is_one_step_and_short_ones_are_in_the_next() -> None:
    driver = chunked(chunked_prefill=False)
    long = driver.submit(prompt(100, LONG), max_tokens=2)
    short = driver.submit(prompt(900, 10), max_tokens=2)
    plans = [driver.rows(driver.step()) for _ in range(3)]
    assert plans == [{long: LONG}, {long: 1}, {short: 10}]


def test_lanes_of_a_step_group_divide_their_steps_each_for_itself() -> None:
    driver = chunked(num_lanes=2, lanes_per_group=2)
    longs = [driver.submit(prompt(first, LONG), max_tokens=2) for first in (100, 200)]
    for _ in range(4):
        driver.step(0)
        driver.step(1)
    assert all(driver.core._lanes[lane].running for lane in range(2))
    short = driver.submit(prompt(900, 10), max_tokens=2)
    lane = driver.core._requests.living[short].lane
    num_steps = 0
    while short not in driver.answers:
        for one in range(2):
            driver.step(one)
        num_steps += 1
    assert num_steps == 3, lane
    driver.run()
    assert all(driver.answers[name].ending == "length" for name in longs)


def test_who_shares_a_prefix_with_the_long_prompt_waits_for_its_pages() -> None:
    driver = chunked()
    long = in_chunks(driver)
    half = driver.submit([*prompt(100, LONG // 2), *prompt(900, 10)], max_tokens=2)
    steps_to_first_token(driver, half)
    assert driver.answers[half].sources is not None
    assert driver.answers[half].sources["l1"] == LONG // 2
    assert long not in driver.answers


def test_nobody_waits_for_the_pages_of_a_prompt_that_a_long_one_keeps_out() -> None:
    driver = chunked(policy=SchedulingPolicy.FCFS)
    kept_out = in_chunks(driver, first=100)
    driver.submit(prompt(300, LONG), max_tokens=2, priority=-5)
    for _ in range(4):
        driver.step()
    num_computed = driver.core._requests.living[kept_out].num_computed
    # Pages that the one which is kept out would compute next.
    shared = prompt(100, num_computed + 32)
    urgent = driver.submit([*shared, *prompt(900, 10)], max_tokens=2, priority=-5)
    assert steps_to_first_token(driver, urgent) <= 8
    driver.run()
    assert driver.answers[kept_out].ending == "length"


def test_who_waits_already_is_woken_when_a_long_prompt_keeps_its_leader_out() -> None:
    driver = chunked(policy=SchedulingPolicy.FCFS)
    leader = in_chunks(driver, first=100)
    num_pages = driver.core._requests.living[leader].num_planned // 16 + 12
    follower = driver.submit(
        [*prompt(100, num_pages * 16), *prompt(900, 10)], max_tokens=2, priority=-5
    )
    driver.step()
    waiting = driver.core._lanes[0].waiting
    assert not waiting.has_turns, "it waits for pages"
    assert len(waiting) == 1
    driver.submit(prompt(300, LONG), max_tokens=2, priority=-5)
    num_steps = steps_to_first_token(driver, follower)
    assert num_steps < LONG // BUDGET // 2
    assert leader not in driver.answers


def test_prompts_whose_logprobs_are_asked_for_share_steps_too() -> None:
    driver = chunked()
    in_chunks(driver)
    sampling = replace(GREEDY, num_prompt_logprobs=0)
    short = driver.submit(prompt(900, 40), max_tokens=2, sampling=sampling)
    assert steps_to_first_token(driver, short) <= 6
    assert driver.answers[short].scored == [*range(1, 40)]


def test_a_short_prompt_whose_pages_are_loaded_shares_the_steps() -> None:
    driver = chunked(has_host_memory=True)
    in_chunks(driver)
    cached = prompt(900, 640)
    driver.fill_l2(cached)
    name = driver.submit([*cached, *prompt(500, 10)], max_tokens=2)
    num_steps = 0
    while name not in driver.answers:
        driver.host_turn()
        driver.finish_copies()
        driver.step()
        num_steps += 1
    assert num_steps <= 5
