"""The last error of a store, and how many there were before it."""

import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LastError:
    """What a store said when it last failed."""

    text: str
    at_s: float
    """The time of the error, in Unix time."""
    num_errors: int
    """The number of errors that were noted, with this one."""

    def to_values(self) -> dict[str, Any]:
        """The error as plain values, for figures."""
        return asdict(self)

    @staticmethod
    def from_values(values: dict[str, Any]) -> "LastError":
        """The error that `to_values` has made plain values of."""
        return LastError(**values)


def join_errors(one: LastError | None, other: LastError | None) -> LastError | None:
    """The later of two that were noted apart, with the number of both."""
    if one is None or other is None:
        return one or other
    later = max(one, other, key=lambda error: error.at_s)
    num_errors = one.num_errors + other.num_errors
    return LastError(text=later.text, at_s=later.at_s, num_errors=num_errors)


class ErrorLog:
    """Owns: the last error that was noted, and how many there were. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """`clock`: Unix time, for people who compare it with the logs of the store."""
        self._clock = clock
        self._last: LastError | None = None
        self._lock = threading.Lock()

    def note(self, error: object, num_errors: int = 1) -> None:
        """Note that an error has happened, so many times."""
        text = str(error) or type(error).__name__
        with self._lock:
            num_before = 0 if self._last is None else self._last.num_errors
            self._last = LastError(
                text=text, at_s=self._clock(), num_errors=num_before + num_errors
            )

    def take_over(self, other: LastError) -> None:
        """Add what was noted elsewhere, by a log that ends."""
        with self._lock:
            self._last = join_errors(self._last, other)

    @property
    def last(self) -> LastError | None:
        """The last one; None if there was none."""
        with self._lock:
            return self._last
