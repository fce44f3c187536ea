import math

import pytest

from raydix.errors import ConfigError
from raydix.runtime.actors.supervision.restarts import CrashHistory, Supervision


def test_first_crash_is_repaired_at_once_and_later_ones_after_growing_pauses() -> None:
    history = CrashHistory(Supervision(max_crashes=5, first_backoff_s=0.1, max_backoff_s=0.3))
    assert [history.record(float(i)) for i in range(5)] == [0.0, 0.1, 0.2, 0.3, 0.3]


def test_too_many_crashes_within_the_window_end_the_repairs() -> None:
    history = CrashHistory(Supervision(max_crashes=2))
    assert history.record(0.0) is not None
    assert history.record(1.0) is not None
    assert history.record(2.0) is None


def test_crashes_outside_the_window_are_forgotten() -> None:
    history = CrashHistory(Supervision(max_crashes=1, crash_window_s=10.0))
    assert [history.record(20.0 * i) for i in range(5)] == [0.0] * 5


@pytest.mark.parametrize("drain_s", ["x", -1, True, math.nan, math.inf, None, 10**400])
def test_a_drain_that_is_no_time_is_refused(drain_s: float) -> None:
    with pytest.raises(ConfigError, match="expected a number of seconds, 0 or more"):
        Supervision(drain_timeout_s=drain_s)
