"""Further samples of a prompt go to the lane that computes it, if it is their own client's."""

import pytest

from tests.runtime.scheduler.core_driver import CLIENT, CoreDriver

PROMPT = list(range(13))


def lane_of(driver: CoreDriver, name: str) -> int:
    return driver.core._requests.living[name].lane  # type: ignore[index]


@pytest.mark.parametrize(
    ("client", "sample_of", "lane"),
    [(CLIENT, "first", 0), ("other", "first", 1), (CLIENT, None, 1)],
)
def test_sample_of_a_living_request_follows_it_and_others_go_where_less_waits(
    client: str, sample_of: str | None, lane: int
) -> None:
    driver = CoreDriver(num_lanes=2)
    # It has no full page, which others would share.
    driver.submit(PROMPT[:3], name="first")
    assert lane_of(driver, "first") == 0
    driver.submit(PROMPT[:3], name="next", client=client, sample_of=sample_of)
    assert lane_of(driver, "next") == lane


def test_sample_whose_first_has_ended_goes_where_less_waits() -> None:
    driver = CoreDriver(num_lanes=2)
    driver.submit(PROMPT, name="first")
    driver.abort("first")
    driver.submit(list(range(100, 140)), name="busy")
    driver.submit(list(range(200, 213)), name="next", sample_of="first")
    assert {lane_of(driver, "busy"), lane_of(driver, "next")} == {0, 1}


def test_sample_of_itself_is_served_as_any_request() -> None:
    driver = CoreDriver(num_lanes=2)
    name = driver.submit(PROMPT, name="self", sample_of="self")
    driver.run()
    assert driver.answers[name].ending == "length"


def test_sample_does_not_wait_on_a_lane_whose_ranks_are_gone() -> None:
    driver = CoreDriver(num_lanes=2)
    driver.submit(PROMPT, name="first")
    driver.lose_rank(0)
    driver.submit(PROMPT, name="next", sample_of="first")
    assert lane_of(driver, "next") == 1
    driver.run()
    assert driver.answers["next"].ending == "length"
