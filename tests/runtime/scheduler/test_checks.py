import pytest

from raydix.errors import AccountingError
from raydix.ids import RequestId
from raydix.runtime.messages.arrays import int32_array
from tests.runtime.scheduler.core_driver import CoreDriver


def test_check_finds_a_request_that_runs_and_was_not_admitted() -> None:
    driver = CoreDriver()
    driver.submit(list(range(20)))
    (lane,) = driver.core._lanes
    request = next(iter(lane.running.values()))
    request.stop_running()

    with pytest.raises(AccountingError, match="a lane has requests that are waiting"):
        driver.core.check()


def test_check_finds_a_request_that_goes_on_and_does_not_count() -> None:
    driver = CoreDriver(max_running_requests=1)
    driver.submit([1])
    name = driver.submit([1], known_output=int32_array([5]))
    requests = driver.core._requests
    assert requests.num_going_on == 1
    requests.admit(requests.living[RequestId(name)])

    with pytest.raises(AccountingError, match="1 requests that wait were taken in before; 0"):
        driver.core.check()
