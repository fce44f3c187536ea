"""The virtual clock: much may happen at one moment, and nothing may hold time up."""

import pytest

from raydix.runtime.foresight.simulator.clock import Clock

NUM = 30_000


def test_any_number_of_actions_may_be_due_at_one_moment() -> None:
    clock, done = Clock(), []
    for number in range(NUM):
        clock.at(1.0, lambda number=number: done.append(number))
    assert clock.run()
    assert done == list(range(NUM))


def test_actions_that_bring_about_each_other_at_one_moment_are_a_loop() -> None:
    clock = Clock()

    def again() -> None:
        clock.after(0.0, again)

    clock.at(1.0, again)
    with pytest.raises(AssertionError, match=r"time stands still at 1.0 s"):
        clock.run()


def test_what_goes_on_for_long_is_no_loop_if_time_passes() -> None:
    clock, left = Clock(), [NUM]

    def again() -> None:
        left[0] -= 1
        if left[0]:
            clock.after(0.001, again)

    again()
    assert clock.run()
    assert left == [0]
