"""Leaves a failing backend alone, and finds out when it is back."""

from enum import StrEnum


class BreakerState(StrEnum):
    """What a breaker does. CLOSED: in use. OPEN: left alone. HALF_OPEN: one probe is under way."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class TripCause(StrEnum):
    """Why a backend is left alone."""

    LATE = "late"
    """A use had not ended when it should have."""
    FAILING = "failing"
    """Uses failed, one after another."""


class CircuitBreaker:
    """Owns: whether a backend may be used.

    Opens after `max_failures` failures in a row, or a use that takes too long. After `backoff_s`
    one use is let through as a probe.

    It is refuted either way. Where it is open and the backend works, the probe shows it, or an
    answer that comes late. Where it is closed and the backend fails, so do the uses. A backend that
    answers probes and nothing else is used less and less: until a use has succeeded beside the
    probe, each trip doubles the backoff, up to `max_backoff_s`.
    """

    def __init__(self, max_failures: int, backoff_s: float, max_backoff_s: float) -> None:
        self._max_failures = max_failures
        self._first_backoff_s = backoff_s
        self._max_backoff_s = max_backoff_s
        self._state = BreakerState.CLOSED
        self._num_failures = 0
        self._backoff_s = backoff_s
        self._is_on_trial = False
        """Whether nothing but a probe has succeeded since the last trip."""
        self._retry_at_s = 0.0

        self.num_trips = 0
        self.off_since_s: float | None = None
        """The time since which the backend is left alone; None while it is in use."""
        self.cause: TripCause | None = None
        """The cause of the last trip; None if there was none."""

    @property
    def state(self) -> BreakerState:
        """The state of the breaker as of the last command."""
        return self._state

    @property
    def retry_at_s(self) -> float | None:
        """The time at which an open breaker admits a probe; None unless it is open."""
        return self._retry_at_s if self._state is BreakerState.OPEN else None

    def is_admitting(self, now_s: float) -> bool:
        """Whether a use may start now."""
        match self._state:
            case BreakerState.CLOSED:
                return True
            case BreakerState.OPEN:
                return now_s >= self._retry_at_s
            case BreakerState.HALF_OPEN:
                return False

    def start(self) -> None:
        """Note that an admitted use starts."""
        if self._state is BreakerState.OPEN:
            self._state = BreakerState.HALF_OPEN

    def succeed(self) -> None:
        """Note that a use succeeded; one from before the breaker opened does not close it."""
        match self._state:
            case BreakerState.CLOSED:
                self._num_failures = 0
                self._is_on_trial = False
            case BreakerState.HALF_OPEN:
                self.close()
            case BreakerState.OPEN:
                pass

    def close(self) -> None:
        """Close the breaker: the backend works and is used again."""
        if self._state is not BreakerState.CLOSED:
            self._state = BreakerState.CLOSED
            self._num_failures = 0
            self.off_since_s = None

    def fail(self, now_s: float) -> None:
        """Note that a use failed."""
        if self._state is BreakerState.OPEN:
            return
        self._num_failures += 1
        if self._state is BreakerState.HALF_OPEN or self._num_failures >= self._max_failures:
            self._open(TripCause.FAILING, now_s)

    def trip(self, now_s: float) -> None:
        """Open the breaker because a use takes too long: others would, too."""
        if self._state is not BreakerState.OPEN:
            self._open(TripCause.LATE, now_s)

    def _open(self, cause: TripCause, now_s: float) -> None:
        if self._state is BreakerState.CLOSED:
            self.num_trips += 1
            self.off_since_s = now_s
        longer_s = min(2 * self._backoff_s, self._max_backoff_s)
        self._backoff_s = longer_s if self._is_on_trial else self._first_backoff_s
        self._is_on_trial = True
        self._state = BreakerState.OPEN
        self._retry_at_s = now_s + self._backoff_s
        self.cause = cause

    def hasten(self, now_s: float) -> None:
        """Let the next probe start if the backend is left alone: it shows a sign of life."""
        self._retry_at_s = min(self._retry_at_s, now_s)

    def abstain(self, now_s: float) -> None:
        """Note that a use told nothing of the backend; if it was the probe, another may start."""
        if self._state is BreakerState.HALF_OPEN:
            self._state = BreakerState.OPEN
            self._retry_at_s = now_s
