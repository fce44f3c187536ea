"""What is taken in and what is refused, by what lives already."""

import pytest

from raydix.runtime.messages.arrays import int32_array
from tests.runtime.scheduler.core_driver import CoreDriver


@pytest.mark.parametrize("known", [[], [5]])
def test_what_was_taken_in_before_waits_however_many_wait(known: list[int]) -> None:
    driver = CoreDriver(max_waiting_requests=1, max_running_requests=1)
    names = [driver.submit([1], max_tokens=2) for _ in range(2)]
    names.append(driver.submit([1], max_tokens=2, known_output=int32_array(known)))
    driver.run()
    assert [driver.answers[name].ending for name in names] == ["length"] * 3
