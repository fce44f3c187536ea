"""Checks a core's invariants once after each spell of work, when nobody waits for it."""

from typing import Protocol

_CHECKED_AFTER_S = 0.02
"""Who asks in turn does not wait for a check, which takes the longer the more pages there are."""


class CheckedCore(Protocol):
    """A state machine that can prove its invariants."""

    @property
    def is_idle(self) -> bool:
        """Nothing is under way."""

    def check(self) -> None:
        """Raise AccountingError unless every invariant holds."""


class IdleCheck:
    """Owns: since when a core has been idle, and whether it was checked since."""

    def __init__(self) -> None:
        self._idle_since_s: float | None = None
        self._is_checked = True

    def advance(self, core: CheckedCore, now_s: float) -> float | None:
        """Check the core if it has been idle for a while. Returns when to come back, if not yet."""
        if not core.is_idle:
            self._is_checked, self._idle_since_s = False, None
            return None
        if self._is_checked:
            return None

        if self._idle_since_s is None:
            self._idle_since_s = now_s
        due_s = self._idle_since_s + _CHECKED_AFTER_S
        if now_s < due_s:
            return due_s
        core.check()
        self._is_checked = True
        return None
