"""Checks a core's invariants once after each spell of work, when nobody waits for it."""

import time
from collections.abc import Callable
from typing import Protocol

_MIN_REST_S = 0.02
"""The shortest rest before a check, so that one who asks again and again does not wait for it."""
_REST_PER_CHECK = 50
"""The rest before a check, as a multiple of the check before. A check takes longer the more pages
there are, and events that come meanwhile wait for it.
"""
_MAX_REST_S = 10.0
"""The longest rest: a check that the machine slowed down delays the next by no more."""


class CheckedCore(Protocol):
    """A state machine that can prove its invariants."""

    @property
    def is_idle(self) -> bool:
        """Nothing is under way."""

    def check(self) -> None:
        """Raise AccountingError unless every invariant holds."""


class IdleCheck:
    """Owns: since when a core has been idle, and whether it was checked since."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._idle_since_s: float | None = None
        self._is_checked = True
        self._rest_s = _MIN_REST_S
        """The time for which a core must be idle before its next check."""

    def advance(self, core: CheckedCore, now_s: float) -> float | None:
        """Check the core if it has been idle for a while. Returns when to come back, if not yet."""
        if not core.is_idle:
            self._is_checked, self._idle_since_s = False, None
            return None
        if self._is_checked:
            return None

        if self._idle_since_s is None:
            self._idle_since_s = now_s
        due_s = self._idle_since_s + self._rest_s
        if now_s < due_s:
            return due_s

        began_s = self._clock()
        core.check()
        rest_s = _REST_PER_CHECK * (self._clock() - began_s)
        self._rest_s = min(max(_MIN_REST_S, rest_s), _MAX_REST_S)
        self._is_checked = True
        return None
