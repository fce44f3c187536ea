"""A step that waits for loads is late when they have ended, and not before."""

from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import TransfersDone
from tests.runtime.scheduler.core_driver import CoreDriver

PROMPT = list(range(1, 18))
NUM_LOADS = 3


def step_behind_loads() -> tuple[CoreDriver, list[int]]:
    """All that is left to a rank is one step, whose rows wait for loads; the ids of these."""
    driver = CoreDriver(
        has_host_memory=True, step_deadline_s=30.0, num_pages=(64,), prefill_budget_tokens=64
    )
    driver.submit([1], max_tokens=1)
    driver.run()
    # While two steps are under way, loads are sent and rows are not.
    for token in (7, 8):
        driver.submit([token] * 60, max_tokens=1)
    for start in range(100, 100 + NUM_LOADS):
        prompt = [start, *PROMPT[1:]]
        driver.fill_l2(prompt)
        driver.submit(prompt, max_tokens=1)
    driver.host_turn()

    while max(driver.plans[0][0].row_loads, default=-1) < 0:
        driver.step()
    (plan,) = driver.plans[0]
    return driver, plan.row_loads.tolist()


def finish_load(driver: CoreDriver, number: int) -> None:
    """The rank has done one load."""
    driver.report(0, TransfersDone(rank=0, transfer_ids=int32_array([number])))


def test_step_is_not_late_for_the_time_of_the_loads_that_it_waits_for() -> None:
    driver, loads = step_behind_loads()
    for number in loads:
        driver.wait(20.0)
        finish_load(driver, number)
    driver.wait(20.0)
    driver.step()
    driver.wait(9.0)
    assert len(loads) == NUM_LOADS
    assert not driver.kills


def test_step_that_hangs_when_its_loads_have_ended_is_noticed() -> None:
    driver, loads = step_behind_loads()
    for number in loads:
        driver.wait(20.0)
        finish_load(driver, number)
    driver.wait(31.0)
    assert "step" in driver.kills[0].reason


def test_load_that_hangs_under_a_step_is_what_is_late() -> None:
    driver, loads = step_behind_loads()
    driver.wait(31.0)
    assert f"transfer {loads[0]} " in driver.kills[0].reason
