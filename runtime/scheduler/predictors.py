"""Learned rates: how long will it take to compute so many tokens, or to load so many bytes?"""

import math

_KEEP_S = 30.0
"""A rate that was not observed for this long drifts back to its start value."""


class RatePredictor:
    """An exponentially weighted rate (units per second) that forgets when it is not used.

    An observation of `full_amount` units counts with `weight`, and so do several that add up to it: many small ones,
    whose time is mostly not spent on their units, do not outweigh a large one.
    """

    def __init__(self, start_rate: float, *, full_amount: float, weight: float = 0.3) -> None:
        self._start_rate = start_rate
        self._rate = start_rate
        self._full_amount = full_amount
        self._weight = weight
        self._observed_s: float | None = None

    def observe(self, amount: float, seconds: float, now_s: float) -> None:
        """Learn that `amount` units took `seconds`; durations below a microsecond teach nothing."""
        if seconds < 1e-6 or amount <= 0:
            return
        weight = 1 - (1 - self._weight) ** min(1.0, amount / self._full_amount)
        rate = self.rate(now_s)
        self._rate = rate + weight * (amount / seconds - rate)
        self._observed_s = now_s

    def rate(self, now_s: float) -> float:
        """Units per second."""
        if self._observed_s is None:
            return self._start_rate
        idle_s = now_s - self._observed_s - _KEEP_S
        if idle_s <= 0:
            return self._rate
        kept = math.exp(-idle_s / _KEEP_S)
        return self._start_rate + kept * (self._rate - self._start_rate)

    def predict_s(self, amount: float, now_s: float) -> float:
        """Seconds that `amount` units will take."""
        return amount / self.rate(now_s)
