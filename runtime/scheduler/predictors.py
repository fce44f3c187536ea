"""Learned times: how long will it take to compute so many tokens, or to load so many bytes?"""

import math
from dataclasses import dataclass

_KEEP_S = 30.0
"""After so long without an observation the prediction drifts back to the start values."""
_START_WEIGHT = 0.01
"""Of the start values, beside observations that weigh 1 each."""
_MAX_SURPRISE = 8.0
"""What takes longer counts as so many times what was predicted: a kernel was compiled, or the host
held up. If it is really so slow, the next ones soon say so, too.
"""
_MIN_SLOPE = 0.25
"""The least that a unit is believed to take, as a part of what it takes by the start rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    """Of a line through weighted observations: what least squares need to know of them.

    Amounts are parts of the full one.
    """

    weight: float
    amount: float
    amount_squared: float
    seconds: float
    product: float

    def fixed_and_slope(self) -> tuple[float, float]:
        """The line: seconds at nothing, and more for a full amount."""
        spread = self.weight * self.amount_squared - self.amount**2
        fixed_s = self.seconds * self.amount_squared - self.product * self.amount
        return fixed_s / spread, (self.weight * self.product - self.amount * self.seconds) / spread

    def mixed(self, other: "_Fit", part: float) -> "_Fit":
        """So much of this one, and the rest of the other."""
        rest = 1.0 - part
        return _Fit(
            weight=part * self.weight + rest * other.weight,
            amount=part * self.amount + rest * other.amount,
            amount_squared=part * self.amount_squared + rest * other.amount_squared,
            seconds=part * self.seconds + rest * other.seconds,
            product=part * self.product + rest * other.product,
        )

    def with_one_more(self, amount: float, seconds: float, keep: float) -> "_Fit":
        """Of what older observations say, that which this one says, too, counts by `keep` less.

        Steps of one size tell what such a step takes, but not what another would. What is known of
        that stays: or else they were believed to have no fixed time, and be cut ever smaller.
        """
        fixed_s, slope_s = self.fixed_and_slope()
        along = self.weight + amount * self.amount
        across = self.amount + amount * self.amount_squared
        lost = (1.0 - keep) / (along + amount * across)
        weight = self.weight - lost * along * along
        mixed = self.amount - lost * along * across
        squared = self.amount_squared - lost * across * across
        return _Fit(
            weight=weight + 1.0,
            amount=mixed + amount,
            amount_squared=squared + amount * amount,
            # Less weight moves no line.
            seconds=weight * fixed_s + mixed * slope_s + seconds,
            product=mixed * fixed_s + squared * slope_s + amount * seconds,
        )


class TimePredictor:
    """A line through recent observations: some time per piece of work, and some per unit of it.

    A large observation outweighs older ones; small ones add up, and tell of the time that does not
    depend on the size. So steps of 16 tokens say little about the time per token, and large loads
    little about the least that one takes. Forgetting is directional (Kulhavy, 1987).
    """

    def __init__(
        self, start_rate: float, *, full_amount: float, fixed_s: float = 0.0, weight: float = 0.3
    ) -> None:
        """`start_rate`: units per second after `fixed_s`, believed before anything is observed.

        Rather too high than too low: what is observed beyond it is first held for fixed time, so
        that larger pieces are tried, which tell. Observations that add up to `full_amount` units
        make older ones count by `weight` less.
        """
        self._full_amount = full_amount
        self._full_s = full_amount / start_rate
        self._keep = 1.0 - weight
        # As if nothing had taken the fixed time, and a full amount so much longer.
        self._start = _Fit(
            weight=2.0 * _START_WEIGHT,
            amount=_START_WEIGHT,
            amount_squared=_START_WEIGHT,
            seconds=_START_WEIGHT * (2.0 * fixed_s + self._full_s),
            product=_START_WEIGHT * (fixed_s + self._full_s),
        )
        self._fit = self._start
        self._observed_s = 0.0

    def observe(self, amount: float, seconds: float, now_s: float) -> None:
        """Learn that `amount` units took `seconds`; durations below a microsecond teach nothing."""
        # Also what is no number: no later observation would outweigh it.
        if not seconds >= 1e-6 or amount <= 0:
            return
        seconds = min(seconds, _MAX_SURPRISE * self.predict_s(amount, now_s))
        part = amount / self._full_amount
        keep = self._keep ** min(1.0, part)
        self._fit = self._fit_at(now_s).with_one_more(part, seconds, keep)
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

    def line(self, now_s: float) -> tuple[float, float]:
        """Seconds for a piece of work, and for each unit of it: least squares, within bounds."""
        fit = self._fit_at(now_s)
        fixed_s, slope_s = fit.fixed_and_slope()
        if fixed_s < 0.0:
            # Through the origin: no work takes less than no time.
            fixed_s, slope_s = 0.0, fit.product / fit.amount_squared
        if slope_s < (least_s := _MIN_SLOPE * self._full_s):
            fixed_s = max(0.0, (fit.seconds - least_s * fit.amount) / fit.weight)
            slope_s = least_s
        return fixed_s, slope_s / self._full_amount

    def _fit_at(self, now_s: float) -> _Fit:
        """What was observed counts less once nothing has been observed for long."""
        idle_s = now_s - self._observed_s - _KEEP_S
        return (
            self._fit if idle_s <= 0 else self._fit.mixed(self._start, math.exp(-idle_s / _KEEP_S))
        )
