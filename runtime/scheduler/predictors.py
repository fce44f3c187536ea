"""Learned times: how long will it take to compute so many tokens, or to load so many bytes?"""

import math
from dataclasses import dataclass

_KEEP_S = 30.0
"""After so long without an observation the prediction drifts back to the start values."""
_START_WEIGHT = 0.01
"""Of the start values, beside observations that weigh 1 each."""
_SURPRISE = 2.0
"""What takes so many times as long as predicted is believed once it has been so slow thrice: a
kernel was compiled, or the host held up. Nothing is so many times as quick by accident.
"""
_NUM_SUSPECTS = 2
"""Pieces that were so slow before the one that is believed."""
_REFUTED = 0.3
"""What was known of a size counts so much once it is believed to be that much slower or quicker."""
_FADE = 0.1
"""Forgetting what observations of other sizes have told, beside what those of one size have."""
_MIN_SLOPE = 0.25
"""The least that a unit is believed to take, as a part of what it takes by the start rate."""


@dataclass(slots=True)
class _Sums:
    """Of weighted observations: all that a straight line through them depends on.

    Amounts are parts of the full one.
    """

    weight: float = 0.0
    amount: float = 0.0
    amount_squared: float = 0.0
    seconds: float = 0.0
    product: float = 0.0

    def add(self, amount: float, seconds: float, weight: float = 1.0) -> None:
        """One more observation."""
        self.weight += weight
        self.amount += weight * amount
        self.amount_squared += weight * amount * amount
        self.seconds += weight * seconds
        self.product += weight * amount * seconds

    def plus(self, other: "_Sums") -> "_Sums":
        """All observations of both."""
        return _Sums(
            self.weight + other.weight,
            self.amount + other.amount,
            self.amount_squared + other.amount_squared,
            self.seconds + other.seconds,
            self.product + other.product,
        )

    def fade(self, keep: float) -> None:
        """All of them count so much of what they did."""
        self.weight *= keep
        self.amount *= keep
        self.amount_squared *= keep
        self.seconds *= keep
        self.product *= keep

    def fade_along(self, amount: float, keep: float) -> None:
        """What they say of this amount counts so much of what it did; the rest as before.

        Pieces of one size tell what such a piece takes, but not how much of it is fixed. What is
        known of that would be forgotten meanwhile, and the fixed time be held for that of units.
        This is directional forgetting (Kulhavy, 1987).
        """
        weight = self.weight + amount * self.amount
        mixed = self.amount + amount * self.amount_squared
        whole = weight + amount * mixed
        if whole <= 0.0:
            return

        # Divided first: after hours of idleness all of it is too little to divide by.
        weight_part, mixed_part = weight / whole, mixed / whole
        lost = 1.0 - keep
        lost_s = lost * (self.seconds + amount * self.product)
        self.weight -= lost * weight_part * weight
        self.amount -= lost * weight_part * mixed
        self.amount_squared -= lost * mixed_part * mixed
        self.seconds -= lost_s * weight_part
        self.product -= lost_s * mixed_part

    def line(self) -> tuple[float, float]:
        """Seconds at nothing, and more for a full amount: least squares."""
        spread = self.weight * self.amount_squared - self.amount**2
        fixed_s = self.seconds * self.amount_squared - self.product * self.amount
        return fixed_s / spread, (self.weight * self.product - self.amount * self.seconds) / spread


class TimePredictor:
    """A line through recent observations: some time per piece of work, and some per unit of it.

    A large observation outweighs older ones; small ones add up, and tell of the time that does not
    depend on the size. So steps of 16 tokens say little about the time per token, and large loads
    little about the least that one takes.
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
        self._log_keep = math.log1p(-weight)
        self._start = _Sums()
        self._start.add(0.0, fixed_s, _START_WEIGHT)
        self._start.add(1.0, fixed_s + self._full_s, _START_WEIGHT)
        self._observed = _Sums()
        self._observed_s = 0.0
        self._suspects: list[tuple[float, float]] = []
        """Amounts and seconds that were surprisingly slow, which nothing has contradicted."""

    def observe(self, amount: float, seconds: float, now_s: float) -> None:
        """Learn that `amount` units took `seconds`; less than a microsecond teaches nothing."""
        # Also what is no number: no later observation would outweigh it.
        if not 1e-6 <= seconds < math.inf or amount <= 0:
            return
        predicted_s = self.predict_s(amount, now_s)
        believed_s = self._believe_s(amount, seconds, now_s)
        if believed_s is None:
            return

        part = amount / self._full_amount
        log_keep = self._log_keep * min(1.0, part)
        keep_along = math.exp(log_keep)
        if not 1.0 / _SURPRISE <= believed_s / predicted_s <= _SURPRISE:
            # What other sizes take is kept: no more need have changed.
            keep_along *= _REFUTED
        self._observed.fade(self._kept(now_s) * math.exp(_FADE * log_keep))
        self._observed.fade_along(part, keep_along)
        self._observed.add(part, believed_s)
        self._observed_s = now_s

    def _believe_s(self, amount: float, seconds: float, now_s: float) -> float | None:
        """How long it takes by what is known now; None: this is too slow to be believed yet."""
        fixed_s, slope_s = self.line(now_s)

        # No piece takes longer than a larger one, or longer by the unit than a smaller one. So what
        # small ones take does not contradict large ones that are slow by their units.
        self._suspects = [
            (size, size_s)
            for size, size_s in self._suspects
            if _SURPRISE * (fixed_s + size * slope_s) < size_s
            and size_s <= _SURPRISE * seconds * max(1.0, size / amount)
        ]
        predicted_s = fixed_s + amount * slope_s
        if seconds <= _SURPRISE * predicted_s:
            return seconds

        suspects, suspect = self._suspects, (amount, seconds)
        self._suspects = [*suspects, suspect][-_NUM_SUSPECTS:]
        if len(suspects) < _NUM_SUSPECTS:
            return None
        # As slow as the least slow of them.
        slowness = [size_s / (fixed_s + size * slope_s) for size, size_s in [*suspects, suspect]]
        return predicted_s * min(slowness)

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
        sums = _Sums().plus(self._observed)
        sums.fade(self._kept(now_s))
        sums = sums.plus(self._start)
        fixed_s, slope_s = sums.line()
        if fixed_s < 0.0:
            # Through the origin: no work takes less than no time.
            fixed_s, slope_s = 0.0, sums.product / sums.amount_squared
        if slope_s < (least_s := _MIN_SLOPE * self._full_s):
            fixed_s = max(0.0, (sums.seconds - least_s * sums.amount) / sums.weight)
            slope_s = least_s
        return fixed_s, slope_s / self._full_amount

    def _kept(self, now_s: float) -> float:
        """How much of what was observed still counts."""
        idle_s = now_s - self._observed_s - _KEEP_S
        return 1.0 if idle_s <= 0 else math.exp(-idle_s / _KEEP_S)
