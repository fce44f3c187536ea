"""A request for logprobs of its prompt takes no page from a cache whose logits it still needs."""

import dataclasses

import pytest

from raydix.runtime.config.policies import LoadPolicy, SchedulingPolicy
from raydix.runtime.messages.host import Lookup
from raydix.runtime.messages.plan import DeviceSampling
from tests.runtime.scheduler.core_driver import CoreDriver

SCORED = DeviceSampling(seed=0, num_prompt_logprobs=2)
PROMPT = list(range(30))
"""Seven full pages and two tokens: two steps."""


def assert_scored(driver: CoreDriver, name: str) -> None:
    """It was told everything once, and took nothing from a cache."""
    answer = driver.answers[name]
    assert answer.ending == "length"
    assert answer.scored == list(range(1, len(PROMPT)))
    assert answer.sources == {"computed:prompt_logprobs": 28, "computed:partial_page": 2}


@pytest.mark.parametrize("policy", SchedulingPolicy)
def test_a_cached_prompt_is_computed_from_its_first_token(policy: SchedulingPolicy) -> None:
    driver = CoreDriver(policy=policy)
    driver.submit(PROMPT, name="cold")
    driver.run()
    assert driver.answers["cold"].scored == []

    driver.submit(PROMPT, name="scored", sampling=SCORED)
    plan = driver.step()
    driver.run()

    assert (plan.row_starts.tolist(), plan.row_num_tokens.tolist()) == ([0], [16])
    assert_scored(driver, "scored")


def test_its_pages_serve_others_and_theirs_are_kept_once() -> None:
    driver = CoreDriver()
    driver.submit(PROMPT, name="scored", sampling=SCORED)
    driver.run()
    driver.submit(PROMPT, name="other")
    driver.run()
    assert driver.answers["other"].sources == {"l1": 28, "computed:partial_page": 2}
    num_cached = driver.core.stats()["l1_cached_pages"]

    driver.submit(PROMPT, name="again", sampling=SCORED)
    driver.run()

    assert_scored(driver, "again")
    assert driver.core.stats()["l1_cached_pages"] == num_cached


def test_l2_and_l3_are_not_asked_for_what_could_not_be_used() -> None:
    driver = CoreDriver(has_host_memory=True, load=LoadPolicy.ALWAYS)
    driver.fill_l2(PROMPT)
    driver.to_host.clear()

    driver.submit(PROMPT, name="scored", sampling=SCORED)

    assert not any(isinstance(message, Lookup) for message in driver.to_host)
    driver.run()
    assert_scored(driver, "scored")


def test_it_waits_for_no_leader_and_leads_others() -> None:
    driver = CoreDriver(prefill_budget_tokens=32, is_attached=False)
    driver.submit(PROMPT, name="leader")
    driver.submit(PROMPT, name="scored", sampling=SCORED)
    driver.submit(PROMPT, name="follower")
    driver.attach_rank(0)

    first, second = driver.plans[0][0], driver.plans[0][1]
    assert list(driver.rows(first)) == ["leader"]
    assert list(driver.rows(second)) == ["leader", "scored"]
    driver.run()

    assert_scored(driver, "scored")
    assert driver.answers["follower"].sources == {"l1": 28, "computed:partial_page": 2}


@pytest.mark.parametrize("num_steps", [0, 1, 2, 3])
def test_a_lost_rank_costs_no_logprob_and_none_is_told_twice(num_steps: int) -> None:
    driver = CoreDriver()
    driver.submit(PROMPT, name="scored", sampling=SCORED)
    for _ in range(num_steps):
        driver.step()
    driver.lose_rank(0)
    driver.attach_rank(0, incarnation=2)

    driver.run()

    assert_scored(driver, "scored")


def test_after_a_retraction_it_goes_on_behind_what_was_scored() -> None:
    driver = CoreDriver(num_pages=(20,), max_model_len=64)
    driver.submit(PROMPT, name="scored", sampling=SCORED)
    driver.step()
    request = driver.core._requests.living["scored"]  # type: ignore[index]
    assert request.must_score
    assert request.max_cached_tokens == 16
    driver.core._life.requeue(request)
    driver.send_tick()

    # What is in flight of its former run does not count.
    plans = [driver.step() for _ in range(3)]

    assert [plan.row_starts.tolist() for plan in plans] == [[16], [30], [16]]
    [added] = plans[-1].added
    assert added.num_scored_tokens == 16
    driver.run()
    assert_scored(driver, "scored")


def test_once_it_has_all_logprobs_a_retracted_request_takes_all_that_is_cached() -> None:
    driver = CoreDriver()
    driver.submit(PROMPT, name="scored", sampling=SCORED, max_tokens=9)
    for _ in range(4):
        driver.step()
    request = driver.core._requests.living["scored"]  # type: ignore[index]
    assert not request.must_score
    driver.core._life.requeue(request)
    driver.run()
    assert request.max_cached_tokens == request.num_tokens
    assert_scored(driver, "scored")


def test_a_prompt_of_one_token_has_no_logprobs_to_wait_for() -> None:
    driver = CoreDriver()
    driver.submit([5], name="short", sampling=SCORED)
    driver.run()
    answer = driver.answers["short"]
    assert (answer.scored, answer.ending) == ([], "length")


def test_others_of_its_client_are_untouched_by_its_abort() -> None:
    driver = CoreDriver()
    driver.submit(PROMPT, name="scored", sampling=SCORED)
    driver.submit([*PROMPT[:5], *PROMPT], name="other", sampling=SCORED)
    driver.step()
    driver.abort("scored")
    driver.run()
    assert driver.answers["scored"].ending == "abort"
    assert len(driver.answers["other"].scored) == len(PROMPT) + 4


def test_logprobs_for_a_lane_of_several_ranks_count_once() -> None:
    driver = CoreDriver(ranks_per_lane=2)
    driver.submit(PROMPT, name="scored", sampling=dataclasses.replace(SCORED, num_logprobs=1))
    driver.run()
    assert_scored(driver, "scored")
