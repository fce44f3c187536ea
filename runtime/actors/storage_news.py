"""Tells when L3 is left alone because it fails, and when it is used again."""

import logging

from raydix.runtime.actors.figures_log import News
from raydix.runtime.cache.host.circuit_breaker import BreakerState
from raydix.runtime.metrics import Figures, number

INTERVAL_S = 1.0
_UNUSED = "none"


class StorageNews:
    """Owns: what HostMemory's figures said of L3 at the last look."""

    def __init__(self) -> None:
        self._num_trips = 0.0
        self._failing_since_s: float | None = None

    def tell(self, figures: Figures, now_s: float) -> News | None:
        """Tell what is new since the last time, as `Teller.tell` says."""
        state = figures["l3_breaker"]
        num_trips, self._num_trips = self._num_trips, number(figures["l3_breaker_trips"])
        if self._failing_since_s is None:
            # It may be back already; that it failed is said all the same.
            has_tripped = state != _UNUSED and self._num_trips > num_trips
            return self._fail(now_s) if has_tripped else None
        if state == BreakerState.CLOSED:
            return self._recover(now_s)
        if state == _UNUSED:
            self._failing_since_s = None
        return None

    def _fail(self, now_s: float) -> News:
        self._failing_since_s = now_s
        return (
            logging.WARNING,
            "L3 fails or is too slow: it is left alone, and probed until it works; prompts are "
            "computed instead of read",
        )

    def _recover(self, now_s: float) -> News:
        assert self._failing_since_s is not None, "it failed before"
        seconds = now_s - self._failing_since_s
        self._failing_since_s = None
        return logging.INFO, f"L3 is in use again, {seconds:.1f} s after it failed"
