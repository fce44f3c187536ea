"""Learned times: how long will it take to compute so many tokens, or to load so many bytes?"""

import math
from dataclasses import dataclass

_KEEP_S = 30.0
"""After so long without an observation the prediction drifts back to the start values."""
_MIN_START_WEIGHT = 0.02
"""The start values always count a little: observations of one size alone make no line."""
_MAX_SURPRISE = 8.0
"""What takes longer counts as so many times what was predicted: a kernel was compiled, or the host
held up. If it is really so slow, the next ones soon say so, too.
"""
_MIN_SLOPE = 0.25
"""The least that a unit is believed to take, as a part of what it takes by the start rate."""


@dataclass(slots=True)
class _Sums:
    """Of weighted observations: all that a straight line through them depends on."""

    weight: float = 0.0
    amount: float = 0.0
    seconds: float = 0.0
    amount_squared: float = 0.0
    product: float = 0.0

    def add(self, amount: float, seconds: float) -> None:
        """One more observation, of weight 1."""
        self.weight += 1.0
        self.amount += amount
        self.seconds += seconds
        self.amount_squared += amount * amount
        self.product += amount * seconds

    def scaled(self, factor: float) -> "_Sums":
        """The same observations with other weights."""
        return _Sums(
            self.weight * factor,
            self.amount * factor,
            self.seconds * factor,
            self.amount_squared * factor,
            self.product * factor,
        )

    def plus(self, other: "_Sums") -> "_Sums":
        """All observations of both."""
        return _Sums(
            self.weight + other.weight,
            self.amount + other.amount,
            self.seconds + other.seconds,
            self.amount_squared + other.amount_squared,
            self.product + other.product,
        )


class TimePredictor:
    """A line through recent observations: some time per piece of work, and some per unit of it.

    A large observation outweighs older ones; small ones add up, and tell of the time that does not
    depend on the size. So steps of 16 tokens say little about the time per token, and large loads
    little about the least that one takes.
    """

    def __init__(self, start_rate: float, *, full_amount: float, weight: float = 0.3) -> None:
        """`start_rate`: units per second, believed before anything is observed.

        Observations that add up to `full_amount` units make older ones count by `weight` less.
        """
        self._start_slope = 1.0 / start_rate
        self._full_amount = full_amount
        self._keep = 1.0 - weight
        self._start = _Sums()
        self._start.add(0.0, 0.0)
        self._start.add(full_amount, full_amount / start_rate)
        self._start_weight = 1.0
        self._observed = _Sums()
        self._observed_s = 0.0

    def observe(self, amount: float, seconds: float, now_s: float) -> None:
        """Learn that `amount` units took `seconds`; durations below a microsecond teach nothing."""
        # Also what is no number: no later observation would outweigh it.
        if not seconds >= 1e-6 or amount <= 0:
            return
        seconds = min(seconds, _MAX_SURPRISE * self.predict_s(amount, now_s))
        keep = self._keep ** min(1.0, amount / self._full_amount)
        self._start_weight = max(_MIN_START_WEIGHT, keep * self._start_weight_at(now_s))
        self._observed = self._observed.scaled(keep * self._kept(now_s))
        self._observed.add(amount, seconds)
        self._observed_s = now_s

    def rate(self, now_s: float) -> float:
        """Units per second, once a piece of work is under way."""
        return 1.0 / self.line(now_s)[1]

    def predict_s(self, amount: float, now_s: float) -> float:
        """Seconds that `amount` units will take at once; nothing takes no time."""
        if amount <= 0:
            return 0.0
        fixed_s, slope = self.line(now_s)
        return fixed_s + amount * slope

    def _kept(self, now_s: float) -> float:
        """How much of what was observed still counts."""
        idle_s = now_s - self._observed_s - _KEEP_S
        return 1.0 if idle_s <= 0 else math.exp(-idle_s / _KEEP_S)

    def _start_weight_at(self, now_s: float) -> float:
        """How much the start values count: less with each observation, more as those fade."""
        return 1.0 - (1.0 - self._start_weight) * self._kept(now_s)

    def line(self, now_s: float) -> tuple[float, float]:
        """Seconds for a piece of work, and for each unit of it: least squares, within bounds."""
        start = self._start.scaled(self._start_weight_at(now_s))
        sums = start.plus(self._observed.scaled(self._kept(now_s)))
        mean_amount, mean_s = sums.amount / sums.weight, sums.seconds / sums.weight
        spread = sums.amount_squared / sums.weight - mean_amount**2
        slope = (sums.product / sums.weight - mean_amount * mean_s) / spread
        slope = max(slope, _MIN_SLOPE * self._start_slope)
        if slope * mean_amount <= mean_s:
            return mean_s - slope * mean_amount, slope
        # Through the origin: no work takes less than no time.
        return 0.0, sums.product / sums.amount_squared
