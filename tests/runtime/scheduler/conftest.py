from itertools import count

import pytest

from raydix.runtime.scheduler.core import SchedulerCore

_EVENTS_PER_CHECK = 50


@pytest.fixture
def rare_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check invariants with few events, for tests of a thousand requests that wait.

    Each check looks at each request, which took six times as long as all the rest.
    """
    check, events_so_far = SchedulerCore.check, count()

    def check_now_and_then(core: SchedulerCore) -> None:
        if next(events_so_far) % _EVENTS_PER_CHECK == 0:
            check(core)

    monkeypatch.setattr(SchedulerCore, "check", check_now_and_then)
