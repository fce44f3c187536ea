"""Learned times: how long will it take to compute so many tokens, or to load so many bytes?

How a belief is refuted. Too quick: what is done by it is seen to be slow, and the third such piece
is believed. Too slow: one quick piece is believed at once, of any size, for it bounds the others. A
piece takes no longer than a larger one, and no longer per unit than a smaller one. What a belief
keeps from being done is not seen: then it is done as a trial now and then, and what nobody has
done for long is forgotten. What is given up before it is done shows how long it takes at least.
"""

import math
from dataclasses import dataclass

from raydix.runtime.messages.line import Line

_KEEP_S = 30.0
"""Seconds without an observation after which the prediction drifts back to the start values."""
_WEIGHT = 0.3
"""The part of their weight that older observations lose with each full amount observed."""
_LOG_KEEP = math.log1p(-_WEIGHT)
_START_WEIGHT = 0.01
"""The weight of the start values, beside observations that weigh 1 each."""
_LIKELY_SPREAD = 8.0
"""How much farther from its start value the time of a full amount is likely to be than the fixed
time. Of what pieces of one size take beyond the start values half is then put down to fixed time if
they are an eighth of the full amount, more if they are smaller, less if they are larger.
"""
_SURPRISE = 2.0
"""A piece that takes so many times as long as predicted is not believed until three have been that
slow: a kernel may have been compiled, or the host held up. One that is so many times as quick is
believed at once, as no accident makes a piece quick.
"""
_TIMES_GIVEN_UP = 2.0
"""What was given up is believed to take so many times as long as it was waited for. Whoever waits
as long as another way would take must not believe that both take as long.
"""
_NUM_DOUBTED = 2
"""The number of surprisingly slow pieces that come before the one that is believed."""
_REFUTED = 0.3
"""The part of what was known of a size that still counts once a piece of that size refutes it."""
_FADE = 0.1
"""The pace at which an observation makes those of other sizes fade, as a part of the pace for its
own size.
"""
_UNTESTED_S = 3.0
"""Seconds since its last observation for which a way needs no trial."""
_MIN_SLOPE = 0.25
"""The least time of a unit that is ever believed, as a part of its time at the start rate."""


@dataclass(slots=True)
class _Sums:
    """The sums over weighted observations from which a least-squares line is computed.

    Amounts are parts of the full amount.
    """

    weight: float = 0.0
    amount: float = 0.0
    amount_squared: float = 0.0
    seconds: float = 0.0
    product: float = 0.0

    def add(self, amount: float, seconds: float, weight: float = 1.0) -> None:
        """Add one more observation."""
        self.weight += weight
        self.amount += weight * amount
        self.amount_squared += weight * amount * amount
        self.seconds += weight * seconds
        self.product += weight * amount * seconds

    def faded_beside(self, keep: float, other: "_Sums") -> "_Sums":
        """The sums over the observations of both, those of this one at `keep` of their weight."""
        # At once, as each step that was observed asks for it.
        return _Sums(
            self.weight * keep + other.weight,
            self.amount * keep + other.amount,
            self.amount_squared * keep + other.amount_squared,
            self.seconds * keep + other.seconds,
            self.product * keep + other.product,
        )

    def fade(self, keep: float) -> None:
        """Multiply the weight of all observations by `keep`."""
        self.weight *= keep
        self.amount *= keep
        self.amount_squared *= keep
        self.seconds *= keep
        self.product *= keep

    def lower(self, fixed_s: float, slope_s: float) -> None:
        """Make all pieces quicker: by `fixed_s` each, and by `slope_s` for the full amount."""
        self.seconds -= fixed_s * self.weight + slope_s * self.amount
        self.product -= fixed_s * self.amount + slope_s * self.amount_squared

    def fade_along(self, amount: float, keep: float) -> None:
        """Forget what is known of pieces of this amount, but for the part `keep`; nothing else.

        Pieces of one size show how long such a piece takes, but not how much of that is fixed. If
        everything were forgotten at the same pace, the fixed time would be forgotten while only
        one size is observed. This is directional forgetting (Kulhavy, 1987).
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

    def line(self) -> Line:
        """The line through the observations; its unit is the full amount."""
        spread = self.weight * self.amount_squared - self.amount**2
        fixed_s = self.seconds * self.amount_squared - self.product * self.amount
        unit_s = self.weight * self.product - self.amount * self.seconds
        return Line(fixed_s / spread, unit_s / spread)


class _SlowPieces:
    """Owns: the last pieces that were surprisingly slow, which nothing has contradicted."""

    def __init__(self) -> None:
        self._pieces: list[tuple[float, float]] = []
        """The amount and the seconds of each of these slow pieces."""

    def believe_s(self, amount: float, seconds: float, line: Line) -> float | None:
        """The seconds to learn from a piece, of which `line` was believed so far.

        None if this is too slow to be believed yet.
        """
        # An earlier one is dropped if it is as predicted by now, or if this piece contradicts it: a
        # piece takes no longer than a larger one, and no longer per unit than a smaller one. Per
        # unit small pieces take long, for their fixed time, so they seldom contradict a large one.
        earlier = [
            (size, size_s)
            for size, size_s in self._pieces
            if _SURPRISE * line.predict_s(size) < size_s
            and size_s <= _SURPRISE * seconds * max(1.0, size / amount)
        ]
        self._pieces = earlier
        if seconds <= _SURPRISE * line.predict_s(amount):
            return seconds

        pieces = [*earlier, (amount, seconds)]
        self._pieces = pieces[-_NUM_DOUBTED:]
        if len(earlier) < _NUM_DOUBTED:
            return None
        # Believe the least slow of the three.
        slowness = [size_s / line.predict_s(size) for size, size_s in pieces]
        return line.predict_s(amount) * min(slowness)


class TimePredictor:
    """A line through recent observations: some time per piece of work, and some per unit of it.

    A large observation outweighs older ones. Small ones weigh little one by one, and show the time
    that does not depend on the size. So steps of 16 tokens say little about the time per token, and
    large loads say little about the fixed time of a load.
    """

    def __init__(self, start_rate: float, *, full_amount: float, fixed_s: float = 0.0) -> None:
        """Believe `start_rate` units per second after `fixed_s`, until something is observed.

        It should be too high rather than too low. What a piece takes beyond the prediction is first
        put down to fixed time; that makes larger pieces attractive, and they show the true rate.
        Observations that add up to `full_amount` units make older ones count by `_WEIGHT` less.
        """
        self._full_amount = full_amount
        self._full_s = full_amount / start_rate
        self._start = _Sums()
        self._start.add(0.0, fixed_s, _START_WEIGHT)
        self._start.add(1.0, fixed_s + self._full_s, _START_WEIGHT)
        self._likely_start = _around(fixed_s, self._full_s)
        self._observed = _Sums()
        self._observed_s = 0.0
        self._best = Line(fixed_s, 1.0 / start_rate)
        """The quickest line that was ever believed."""
        self._tests: dict[int, tuple[float, float]] = {}
        """When a piece of a size was observed last, and its seconds; sizes are powers of two."""
        self._line: Line | None = None
        """The line last computed; None once an observation has outdated it."""
        self._likely_line: Line | None = None
        """The likeliest line, in the same way."""
        self._slow = _SlowPieces()

    def observe(self, amount: float, seconds: float, now_s: float) -> None:
        """Learn that `amount` units took `seconds`; less than a microsecond teaches nothing."""
        # Also what is no number: no later observation would outweigh it.
        if not 1e-6 <= seconds < math.inf or amount <= 0:
            return
        line = self.line(now_s)
        self._tests[math.frexp(amount)[1]] = now_s, seconds
        if line.predict_s(self._full_amount) < self._best.predict_s(self._full_amount):
            self._best = line
        believed_s = self._slow.believe_s(amount, seconds, line)
        if believed_s is None:
            return

        part = amount / self._full_amount
        log_keep = _LOG_KEEP * min(1.0, part)
        keep_along = math.exp(log_keep)
        if not 1.0 / _SURPRISE <= believed_s / line.predict_s(amount) <= _SURPRISE:
            # What is known of other sizes is kept: only this one is known to have changed.
            keep_along *= _REFUTED
        self._observed.fade(self._kept(now_s) * math.exp(_FADE * log_keep))
        self._observed.fade_along(part, keep_along)
        self._observed.add(part, believed_s)
        self._observed_s = now_s
        self._line = self._likely_line = None
        if line.predict_s(amount) > _SURPRISE * believed_s:
            self._bound(amount, believed_s, now_s)

    def observe_at_least(self, amount: float, seconds: float, now_s: float) -> None:
        """Learn that `amount` units took longer than `seconds`, after which they were given up.

        That teaches nothing of what is believed to take as long anyway: such a belief fades.
        """
        if self.predict_s(amount, now_s) < seconds:
            self.observe(amount, _TIMES_GIVEN_UP * seconds, now_s)

    def _bound(self, amount: float, seconds: float, now_s: float) -> None:
        """Forget what others took if this piece refutes it: it took so little."""
        line = self.line(now_s)
        fixed_s = _excess_s(line.fixed_s, seconds)
        slope_s = _excess_s(line.unit_s * amount, seconds) * self._full_amount / amount
        if fixed_s or slope_s:
            self._observed.lower(fixed_s, slope_s)
            self._line = self._likely_line = None

    def is_worth_a_trial(self, amount: float, cheap_s: float, now_s: float) -> bool:
        """Whether so many units might take less than the cheaper way, and none were seen lately."""
        is_untested = now_s - self.last_test_s(amount, cheap_s) >= _UNTESTED_S
        # All may go well: then it takes half of the least that was ever believed.
        return is_untested and self._best.predict_s(amount) / _SURPRISE < cheap_s

    def last_test_s(self, amount: float, other_s: float) -> float:
        """The time at which it was last seen whether so many units take less than `other_s`.

        A piece of about that size, or a larger one, shows it, and one of the full amount for any
        that are larger; a smaller piece does if it took no less itself.
        """
        least = math.frexp(min(amount, self._full_amount))[1] - 1
        times_s = (
            at_s
            for size, (at_s, seconds) in self._tests.items()
            if size >= least or seconds >= other_s
        )
        return max(times_s, default=-math.inf)

    def rate(self, now_s: float) -> float:
        """Units per second, once a piece of work is under way."""
        return 1.0 / self.line(now_s).unit_s

    def predict_s(self, amount: float, now_s: float) -> float:
        """Seconds that `amount` units will take at once; nothing takes no time."""
        return self.line(now_s).predict_s(amount) if amount > 0 else 0.0

    def line(self, now_s: float) -> Line:
        """The line of what pieces of work take."""
        kept = self._kept(now_s)
        if kept < 1.0:
            return self._fit(kept, self._start)
        if self._line is None:
            self._line = self._fit(1.0, self._start)
        return self._line

    def likely_line(self, now_s: float) -> Line:
        """The line that is likeliest, for who chooses among places by it, and tries nothing.

        Pieces of one size show how long these take, and not how much of that is fixed. `line` puts
        it down to fixed time, so that larger pieces are tried; here it is divided.
        """
        kept = self._kept(now_s)
        if kept < 1.0:
            return self._fit(kept, self._likely_start)
        if self._likely_line is None:
            self._likely_line = self._fit(1.0, self._likely_start)
        return self._likely_line

    def _fit(self, kept: float, start: _Sums) -> Line:
        """Fit a line by least squares, within bounds."""
        sums = self._observed.faded_beside(kept, start)
        fixed_s, slope_s = sums.line()
        if fixed_s < 0.0:
            # Through the origin: no work takes less than no time.
            fixed_s, slope_s = 0.0, sums.product / sums.amount_squared
        if slope_s < (least_s := _MIN_SLOPE * self._full_s):
            fixed_s = max(0.0, (sums.seconds - least_s * sums.amount) / sums.weight)
            slope_s = least_s
        return Line(fixed_s, slope_s / self._full_amount)

    def _kept(self, now_s: float) -> float:
        """The part of what was observed that still counts."""
        idle_s = now_s - self._observed_s - _KEEP_S
        return 1.0 if idle_s <= 0 else math.exp(-idle_s / _KEEP_S)


def _around(fixed_s: float, full_s: float) -> _Sums:
    """The sums of a belief in each of the two values of a line, whatever the other one is."""
    full_weight = _START_WEIGHT / _LIKELY_SPREAD**2
    return _Sums(
        weight=_START_WEIGHT,
        amount_squared=full_weight,
        seconds=_START_WEIGHT * fixed_s,
        product=full_weight * full_s,
    )


def _excess_s(part_s: float, whole_s: float) -> float:
    """Seconds by which a part of a time is believed to exceed the whole; 0 if by too little."""
    return part_s - whole_s if part_s > _SURPRISE * whole_s else 0.0
