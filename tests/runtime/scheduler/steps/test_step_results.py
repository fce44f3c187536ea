"""What the Scheduler makes of what ranks report."""

import math

import pytest

from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import StepResult, TransfersDone
from raydix.runtime.scheduler import events
from tests.runtime.scheduler.core_driver import CoreDriver

PROMPT = list(range(9))
WRONG_S = [math.nan, math.inf, -math.inf, -1.0, 1e300]


def seconds_of(driver: CoreDriver) -> dict[str, float]:
    """Every figure in seconds."""
    return {name: value for name, value in driver.core.stats().items() if name.endswith("_s")}


@pytest.mark.parametrize("seconds", WRONG_S)
def test_step_time_that_cannot_be_is_counted_and_spoils_no_figure(seconds: float) -> None:
    driver = CoreDriver()
    name = driver.submit(PROMPT, max_tokens=9)
    for _ in range(4):
        plan = driver.plans[0].popleft()
        tokens = int32_array([1] * int((plan.row_output_positions >= 0).sum()))
        result = StepResult(rank=0, step=plan.step, token_ids=tokens, compute_s=seconds)
        driver.report(0, result)
    driver.run()

    assert driver.answers[name].ending == "length"
    assert driver.core.stats()["wrong_times"] == 4
    assert all(0.0 <= value < 1.0 for value in seconds_of(driver).values())


@pytest.mark.parametrize("seconds", WRONG_S)
def test_copy_time_that_cannot_be_is_counted_and_spoils_no_figure(seconds: float) -> None:
    driver = CoreDriver(has_host_memory=True)
    driver.fill_l2(PROMPT)
    name = driver.submit(PROMPT, max_tokens=1)
    driver.host_turn()
    [load] = driver.plans[0][0].loads.transfer_ids[:1].tolist()
    driver.step()
    done = TransfersDone(
        rank=0, transfer_ids=int32_array([load]), num_bytes=1 << 20, seconds=seconds
    )
    driver.report(0, done)
    driver.step()

    assert driver.answers[name].ending == "length"
    assert driver.core.stats()["wrong_times"] == 1
    assert all(0.0 <= value < 1.0 for value in seconds_of(driver).values())


@pytest.mark.parametrize("slow_first", [True, False])
def test_a_load_is_expected_to_take_as_long_as_its_slowest_rank(slow_first: bool) -> None:
    driver = CoreDriver(has_host_memory=True, ranks_per_lane=2, start_load_bytes_per_s=1e6)
    driver.fill_l2(PROMPT)
    for _ in range(20):
        driver.send(events.FlushL1())
        driver.submit(PROMPT, max_tokens=1)
        driver.host_turn()
        loads = int32_array(driver.plans[0][0].loads.transfer_ids[:1])
        driver.step()
        for rank, seconds in enumerate([0.5, 0.01] if slow_first else [0.01, 0.5]):
            driver.report(
                rank,
                TransfersDone(rank=rank, transfer_ids=loads, num_bytes=10_000, seconds=seconds),
            )
        driver._copies[0].clear()
        driver.run()
    assert driver.core._rates.load.predict_s(10_000, driver.now_s) == pytest.approx(0.5, rel=0.1)


def test_tokens_behind_a_stop_are_dropped_when_their_load_is_reported() -> None:
    driver = CoreDriver(has_host_memory=True)
    driver.token_of = lambda name, position: 7 + position  # type: ignore[method-assign]
    driver.fill_l2(PROMPT)
    name = driver.submit(PROMPT, max_tokens=6, stop_token_ids=(7,))
    driver.host_turn()
    num_rows = 0
    while driver.plans[0]:
        num_rows += len(driver.step().row_slots)
    assert num_rows > 1, "rows behind the one that stops"
    driver.run()
    assert driver.answers[name].tokens == [7]
    assert driver.answers[name].ending == "stop"
