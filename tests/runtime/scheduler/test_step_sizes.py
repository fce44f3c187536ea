"""Which prompts a step computes, beside which decodes, and when it waits for their loads."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raydix.runtime.messages.plan import StepPlan
from raydix.runtime.routing.predictors import TimePredictor
from tests.runtime.scheduler.core_driver import BASE, CoreDriver

PAGE_SIZE = 16


def large_driver(**changes: Any) -> CoreDriver:
    """A driver with room for prompts of thousands of tokens, each of which takes 10 us."""
    settings = {
        "page_size": PAGE_SIZE,
        "num_pages": (2000,),
        "max_model_len": 10_000,
        "prefill_budget_tokens": 8192,
        "start_prefill_tokens_per_s": 100_000.0,
    }
    return CoreDriver(**{**settings, **changes})


def prompt(first: int, num_tokens: int) -> list[int]:
    """Tokens that no prompt with another first token has at the same place."""
    return [first + place % 7 for place in range(num_tokens)]


def start_decoding(driver: CoreDriver) -> str:
    """A request decodes, in steps of 10 ms, as has been observed."""
    name = driver.submit(prompt(1, 3), max_tokens=1000)
    for _ in range(20):
        driver.step()
    return name


def first_with(driver: CoreDriver, name: str) -> StepPlan:
    """Steps are carried out up to the first one that has a row of this request."""
    for _ in range(20):
        plan = driver.step()
        if name in driver.rows(plan):
            return plan
    raise AssertionError(f"{name} has no row")


def test_a_prompt_takes_no_more_of_a_step_than_its_decodes_may_be_slowed_down() -> None:
    driver = large_driver(max_decode_slowdown=2.0)
    decoding = start_decoding(driver)
    long = driver.submit(prompt(100, 8000), max_tokens=1)
    rows = driver.rows(first_with(driver, long))
    assert decoding in rows
    # Decodes take 10 ms: no more is left for tokens of some 8 us, if the step costs nothing else.
    assert 512 <= rows[long] <= 2000
    assert rows[long] % PAGE_SIZE == 0


def test_a_prompt_takes_no_more_of_a_step_than_decodes_of_other_lanes_may_be_slowed_down() -> None:
    driver = large_driver(max_decode_slowdown=2.0, num_lanes=2, lanes_per_group=2)
    decoding = driver.submit(prompt(1, 3), max_tokens=1000)
    for _ in range(20):
        driver.step(0)
        driver.step(1)
    long = driver.submit(prompt(100, 8000), max_tokens=1)
    rows: dict[str, int] = {}
    while long not in rows:
        rows = {
            name: num
            for lane in range(2)
            for name, num in driver.rows(driver.step(lane), lane).items()
        }
    assert decoding in rows
    assert 512 <= rows[long] <= 2000


def test_a_prompt_beside_no_decode_takes_the_whole_chunk() -> None:
    driver = large_driver(max_decode_slowdown=2.0)
    long = driver.submit(prompt(100, 8000), max_tokens=1)
    assert driver.rows(driver.plans[0][0]) == {long: 8000}


def test_a_prompt_that_may_not_be_cut_is_computed_in_one_step_beside_any_decodes() -> None:
    driver = large_driver(max_decode_slowdown=1.0, chunked_prefill=False)
    start_decoding(driver)
    long = driver.submit(prompt(100, 9000), max_tokens=1)
    assert driver.rows(first_with(driver, long))[long] == 9000


def test_every_prompt_ends_however_little_decodes_may_be_slowed_down() -> None:
    driver = large_driver(max_decode_slowdown=1.0, num_pages=(3000,))
    start_decoding(driver)
    names = [driver.submit(prompt(100 * number, 3000), max_tokens=1) for number in range(1, 6)]
    for _ in range(40):
        driver.step()
    assert [driver.answers[name].ending for name in names] == ["length"] * 5


def test_prompts_share_a_step_only_as_long_as_that_makes_tokens_cheaper() -> None:
    driver = large_driver()
    busy = driver.submit(prompt(50, 16), max_tokens=2)
    sizes = (1500, 200, 100, 1500)
    names = [
        driver.submit(prompt(100 * number, size), max_tokens=1)
        for number, size in enumerate(sizes, start=1)
    ]
    plans = []
    while driver.plans[0]:
        plans.append(driver.rows(driver.step()))
    _, *later = [rows for rows in plans if max(rows.values()) > 1]
    assert busy not in later[0]
    assert later == [{names[0]: 1500}, {names[1]: 200, names[2]: 100}, {names[3]: 1500}]
    assert [driver.answers[name].ending for name in names] == ["length"] * 4


def play(
    driver: CoreDriver, *, fixed_s: float, token_s: float, compile_s: float = 0.0
) -> list[int]:
    """All steps are carried out, each in this time; returns how many tokens each computed.

    The first of each size takes longer.
    """
    sizes: list[int] = []
    while driver.plans[0]:
        size = sum(driver.rows(driver.plans[0][0]).values())
        first_s = 0.0 if size in sizes else compile_s
        sizes.append(size)
        driver.step(seconds=first_s + fixed_s + size * token_s if size > 1 else 0.008)
    return sizes


@pytest.mark.parametrize("start_tokens_per_s", [50_000.0, 200_000.0])
@pytest.mark.parametrize("compile_s", [0.0, 5.0])
def test_prompts_of_one_length_share_steps_whose_fixed_time_is_long(
    start_tokens_per_s: float, compile_s: float
) -> None:
    driver = large_driver(
        start_prefill_tokens_per_s=start_tokens_per_s, num_pages=(9000,), max_running_requests=128
    )
    for number in range(1, 121):
        driver.submit(prompt(100 * number, 1024), max_tokens=1)
    sizes = play(driver, fixed_s=0.05, token_s=5e-6, compile_s=compile_s)
    assert sum(sizes) == 120 * 1024
    later = sizes[len(sizes) // 2 : -1]
    assert later == [8192] * len(later), "what the first ones cost is known by then"


def test_prompts_of_one_length_have_steps_of_their_own_where_tokens_are_all_the_time() -> None:
    driver = large_driver(num_pages=(6000,), max_running_requests=64)
    for number in range(1, 21):
        driver.submit(prompt(100 * number, 2048), max_tokens=1)
    sizes = play(driver, fixed_s=1e-4, token_s=2e-5)
    assert set(sizes[6:]) == {2048}, "longer ones were tried"


def test_beside_decodes_prompts_take_at_least_what_a_step_costs_without_them() -> None:
    driver = large_driver(
        num_pages=(9000,), max_running_requests=200, max_decode_slowdown=4.0, start_prefill_s=0.005
    )
    start_decoding(driver)
    for number in range(1, 161):
        driver.submit(prompt(100 * number, 512), max_tokens=1)
    sizes = play(driver, fixed_s=0.06, token_s=1e-5)
    # 4 times 8 ms is less than any step with a prompt takes.
    together = [size for size in sizes if size > 1]
    assert min(together[1:6]) > 4000, "what the first ones cost is known by then"


def test_pages_are_loaded_for_the_next_prompt_while_others_use_steps_up() -> None:
    driver = large_driver(has_host_memory=True, max_decode_slowdown=1.0)
    start_decoding(driver)
    cached = prompt(500, 1600)
    driver.fill_l2(cached)
    long = driver.submit(prompt(100, 4000), max_tokens=1)
    driver.host_turn()
    driver.submit(cached, max_tokens=1)
    plans = []
    for _ in range(3):
        driver.host_turn()
        plans.append(driver.step())
    plans += driver.plans[0]
    assert sum(len(plan.loads) for plan in plans) == 100, "its load is under way"
    assert driver.answers.get(long) is None, "the long prompt is not done"


def test_a_row_waits_for_the_loads_before_its_own() -> None:
    driver = CoreDriver(
        has_host_memory=True,
        num_pages=(64,),
        start_load_bytes_per_s=8 * BASE.layout.payload_bytes(0),
    )
    prompts = [list(range(start, start + 33)) for start in (0, 100)]
    for tokens in prompts:
        driver.fill_l2(tokens)
    names = [driver.submit(tokens, max_tokens=1) for tokens in prompts]
    driver.host_turn()
    assert sum(len(plan.loads) for plan in driver.plans[0]) == 16, "16 pages take two seconds"

    driver.wait(1.5)
    rows = [name for plan in driver.plans[0] for name in driver.rows(plan)]
    assert rows == names[:1]
    driver.wait(0.6)
    rows = [name for plan in driver.plans[0] for name in driver.rows(plan)]
    assert rows == names


def test_a_step_predicts_each_load_once_however_many_are_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = large_driver(
        has_host_memory=True, max_running_requests=64, start_load_bytes_per_s=1000.0
    )
    start_decoding(driver)
    prompts = [prompt(100 * number, 64) for number in range(1, 41)]
    for tokens in prompts:
        driver.fill_l2(tokens[:48])
    for tokens in prompts:
        driver.submit(tokens, max_tokens=1)
    for _ in range(3):
        driver.host_turn()
        driver.step()
    lane = driver.core._lanes[0]
    assert len(list(lane.in_flight.loads())) == 40
    predicted: list[float] = []
    predict_s = TimePredictor.predict_s
    decode_rate = driver.core._rates.decode

    def watched(self: TimePredictor, amount: float, now_s: float) -> float:
        if self is not decode_rate:
            predicted.append(amount)
        return predict_s(self, amount, now_s)

    monkeypatch.setattr(TimePredictor, "predict_s", watched)

    # Plans that only start loads come first, and let none be drafted.
    while not predicted:
        driver.step()

    # And what its row computes, besides what the decodes take.
    assert 80 <= len(predicted) <= 2 * 80


@pytest.mark.parametrize(("is_decoding", "is_early"), [(False, True), (True, False)])
def test_a_step_with_decodes_is_not_sent_early_to_wait_for_a_load(
    is_decoding: bool, is_early: bool
) -> None:
    driver = CoreDriver(
        has_host_memory=True,
        num_pages=(64,),
        start_load_bytes_per_s=8 * BASE.layout.payload_bytes(0),
        launch_s=0.5,
    )
    if is_decoding:
        driver.submit([50, 51, 52], max_tokens=90)
        driver.step()
        driver.step()
    tokens = list(range(33))
    driver.fill_l2(tokens)
    name = driver.submit(tokens, max_tokens=1)
    driver.host_turn()
    sent_s = driver.now_s
    while driver.now_s < sent_s + 0.7:
        if is_decoding:
            driver.step()
        else:
            driver.wait(0.01)
    assert any(name in driver.rows(plan) for plan in driver.plans[0]) == is_early


_requests = st.lists(
    st.tuples(st.integers(1, 3000), st.integers(1, 30), st.booleans()), min_size=1, max_size=12
)
"""Prompt tokens, output tokens, and whether L2 holds the prompt."""


@settings(max_examples=40)
@given(
    requests=_requests,
    slowdown=st.sampled_from([1.0, 2.0, 8.0, 1e9]),
    chunk=st.sampled_from([16, 64, 512, 4096]),
)
def test_all_requests_end_whatever_the_slowdown_and_the_chunk(
    requests: list[tuple[int, int, bool]], slowdown: float, chunk: int
) -> None:
    driver = large_driver(
        has_host_memory=True,
        max_decode_slowdown=slowdown,
        prefill_budget_tokens=chunk,
        num_pages=(400,),
    )
    names = []
    for number, (num_tokens, max_tokens, is_cached) in enumerate(requests):
        tokens = prompt(1 + 10 * number, num_tokens)
        if is_cached:
            driver.fill_l2(tokens)
        names.append(driver.submit(tokens, max_tokens=max_tokens))
    driver.run()
    assert {driver.answers[name].ending for name in names} == {"length"}
    assert driver.core.is_idle
