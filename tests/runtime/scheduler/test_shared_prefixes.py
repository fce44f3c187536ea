"""Requests on two lanes that come at once and share a prefix which no tier has."""

from collections.abc import Sequence

import pytest

from tests.runtime.scheduler.core_driver import CoreDriver

_PAGE = 4
_TAIL = 5
_NUM = 32


def _driver(num_lanes: int, **changes: int) -> CoreDriver:
    return CoreDriver(
        num_lanes=num_lanes,
        num_pages=(4096,),
        max_model_len=4096,
        max_running_requests=64,
        prefill_budget_tokens=512,
        **changes,
    )


def _prompts(num_shared: int, first: int = 0) -> list[list[int]]:
    """Prompts that share so many tokens, each with some of its own."""
    shared = list(range(first, first + num_shared))
    return [
        [*shared, *range(100_000 + 10 * index, 100_000 + 10 * index + _TAIL)]
        for index in range(first, first + _NUM)
    ]


def _lanes(driver: CoreDriver, prompts: Sequence[Sequence[int]], **fields: object) -> list[int]:
    """Submit them at once; the lane that each of them waits on."""
    names = [driver.submit(list(prompt), max_tokens=1, **fields) for prompt in prompts]
    return [driver.core._requests.living[name].lane for name in names]


def _num_computed(driver: CoreDriver) -> list[int]:
    """Carry everything out; the tokens that each lane has computed."""
    driver.run()
    num_lanes = driver.settings.num_lanes
    return [
        sum(sum(rows.values()) for (on, _), rows in driver._rows.items() if on == lane)
        for lane in range(num_lanes)
    ]


@pytest.mark.parametrize("num_pages", [50, 127, 128, 640])
def test_a_cold_prefix_that_many_share_is_computed_on_one_lane(num_pages: int) -> None:
    computed = []
    for num_lanes in (1, 2):
        driver = _driver(num_lanes)
        _lanes(driver, _prompts(num_pages * _PAGE))
        computed.append(sum(_num_computed(driver)))
    assert computed[1] <= 1.1 * computed[0]


@pytest.mark.parametrize("num_pages", [0, 1, 4])
def test_a_prefix_that_is_short_beside_what_follows_spreads_over_the_lanes(num_pages: int) -> None:
    driver = _driver(2)
    _lanes(driver, _prompts(num_pages * _PAGE))
    of_lanes = _num_computed(driver)
    assert min(of_lanes) >= 0.3 * sum(of_lanes)


def test_both_lanes_compute_what_would_be_waited_for_longer() -> None:
    driver = _driver(2)
    # What is unrelated keeps the first lane busy, and then the second one for a shorter time.
    assert _lanes(driver, [range(20_000, 23_000), range(30_000, 32_990)]) == [0, 1]
    prompts = _prompts(100 * _PAGE)
    assert _lanes(driver, prompts[:4]) == [1, 1, 1, 1]
    assert _lanes(driver, [range(40_000, 41_000)]) == [0]
    assert _lanes(driver, [range(50_000, 53_000)]) == [1]
    assert _lanes(driver, prompts[4:8]) == [0, 0, 0, 0], "2,000 tokens sooner"
    unrelated = 3000 + 2990 + 1000 + 3000
    assert sum(_num_computed(driver)) >= unrelated + 2 * 400 + 8 * _TAIL


def test_prompts_that_share_nothing_are_spread_evenly_beside_those_that_do() -> None:
    driver = _driver(2)
    _lanes(driver, _prompts(200 * _PAGE))
    unrelated = [range(20_000 + 100 * index, 20_060 + 100 * index) for index in range(40)]
    lanes = _lanes(driver, unrelated)
    of_lanes = _num_computed(driver)
    assert set(lanes) == {0, 1}
    assert abs(of_lanes[0] - of_lanes[1]) <= 200


def test_a_prefix_is_found_by_those_who_share_any_part_of_it() -> None:
    driver = _driver(2)
    long = list(range(300 * _PAGE))
    _lanes(driver, [[*long, 7]])
    for num_shared in (151, 200, 299):
        assert _lanes(driver, [[*long[: num_shared * _PAGE], 90_000, 90_001]]) == [0]
    driver.run()
    assert not driver.core._lanes[0].waiting.coming._requests, "all of it has come"


def test_a_prefix_whose_request_is_gone_does_not_come() -> None:
    driver = _driver(2)
    long = list(range(300 * _PAGE))
    names = [driver.submit([*long, tail], max_tokens=1) for tail in (1, 2)]
    for name in names:
        driver.abort(name)
    driver.run()
    _lanes(driver, [range(20_000, 20_500)])
    assert _lanes(driver, [[*long[: 64 * _PAGE], 7]]) == [1]
