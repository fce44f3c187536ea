"""Requests whose time has come: to end at their deadline, or to be looked at again."""

from collections.abc import Sequence

from raydix.runtime.scheduler.life.endings import Endings
from raydix.runtime.scheduler.life.requests import Requests
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.timers import Timers

_MAX_DUE = 256
"""The most deadlines that one tick looks at; if more are due, the next tick comes at once."""


class Expiry:
    """Looks at the requests that timers name."""

    def __init__(
        self, requests: Requests, lanes: Sequence[Lane], endings: Endings, timers: Timers
    ) -> None:
        self._requests, self._lanes = requests, lanes
        self._endings, self._timers = endings, timers

    def advance(self, now_s: float) -> None:
        """End requests whose deadline has passed, and wake those that waited until now."""
        for entry in self._timers.take_due(now_s, _MAX_DUE):
            request = None if entry is None else self._requests.living.get(entry[0])
            # The name may belong to a later request by now.
            if entry is None or request is None or request.serial != entry[1]:
                continue

            if request.deadline_s is not None and request.deadline_s <= now_s:
                self._endings.expire(request)
            else:
                self._lanes[request.lane].waiting.wake(request)
