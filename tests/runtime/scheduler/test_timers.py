"""Times that wake the Scheduler: who has ended leaves none that pile up."""

from raydix.ids import RequestId
from raydix.runtime.scheduler.timers import Alarm, Timers
from tests.runtime.scheduler.core_driver import CoreDriver


def test_far_deadlines_of_requests_that_have_ended_do_not_pile_up() -> None:
    driver = CoreDriver()
    for _ in range(500):
        driver.submit([1, 2, 3], max_tokens=1, deadline_s=1e6)
        driver.run()
    assert len(driver.core._timers) < 200


def test_forgetting_many_leaves_the_times_of_the_others_in_order() -> None:
    timers = Timers()
    for serial in range(1000):
        timers.add(1000.0 - serial, (RequestId("r"), serial))
    timers.add(0.5)
    for serial in range(1000):
        if serial % 100:
            timers.forget((RequestId("r"), serial))
    assert len(timers) < 130

    due = timers.take_due(2000.0, 1000)
    assert due == [None, *((RequestId("r"), serial) for serial in range(900, -1, -100))]
    assert len(timers) == 0


def test_an_alarm_rings_no_later_than_the_earliest_time_that_it_was_set_to() -> None:
    alarm = Alarm()
    assert alarm.advance(5.0, 0.0)
    assert not alarm.advance(6.0, 0.0), "the one at 5 s comes first"
    assert alarm.advance(4.0, 0.0)

    assert not alarm.advance(6.0, 3.9)
    assert alarm.advance(6.0, 4.0)
