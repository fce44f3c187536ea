import pytest

from raydix.errors import AccountingError
from tests.runtime.scheduler.core_driver import CoreDriver


def test_check_finds_a_request_that_runs_and_was_not_admitted() -> None:
    driver = CoreDriver()
    driver.submit(list(range(20)))
    (lane,) = driver.core._lanes
    request = next(iter(lane.running.values()))
    request.stop_running()

    with pytest.raises(AccountingError, match="a lane has requests that are waiting"):
        driver.core.check()
