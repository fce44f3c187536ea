"""How long each kind of pages is worth keeping: what a tier learns for the policy `reuse`.

Pages are of a kind by the turn and the length of the request that used them last, and by whether
that was their first use. Of each kind a table counts after how long pages are used again, those
that are gone included. To keep pages of a kind for `t` seconds costs the time that they are held,
and yields the share of them that is used meanwhile; at a price per second some `t` pays most. The
price is the one that yields most uses in the room that the tier has.
"""

import math
from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raydix.errors import AccountingError
from raydix.ids import PageKey

Floats = NDArray[np.float64]

NUM_TURNS = 8
"""Later turns count as the last one."""
_NUM_LENGTHS = 8
_NUM_KINDS = 2 * NUM_TURNS * _NUM_LENGTHS
_NUM_BUCKETS = 26
_EDGES_S: Floats = 2.0 ** (np.arange(_NUM_BUCKETS + 1) / 2) - 1
"""Where the buckets of ages begin and end: half an octave each, up to two hours and a quarter."""
_WIDTHS_S: Floats = np.diff(_EDGES_S)
_NUM_GONE = 8192
_NUM_PRICES = 47
_NUM_HALVINGS = 15
_MIN_REVIEW_REQUESTS = 256
_MAX_REVIEW_REQUESTS = 2048
"""A review takes some ms; between two comes a third of all requests so far, in these bounds."""
_MIN_SEEN = 30
"""The uses, and the evictions, that the table has seen before it says anything."""
_MAX_SEEN = 20_000
"""The uses and evictions after which what was seen counts half."""
_PRIOR_USES = 20.0
"""A kind counts as an average one in so many of the uses that are expected of it."""
_KEPT_PER_REVIEW = 0.9
_MIN_GAIN = 0.05
"""The share of all uses that must have been gained of late for the table to be heeded.

Smaller gains are mostly chance: at a hundredth, code completion and agents lost up to a point
against LRU (2026-11-28).
"""


def kind_of(turn: int, num_pages: int, num_hits: int) -> int:
    """The kind of pages that a request of this turn and length has used, hits included."""
    length = min(num_pages.bit_length() // 2, _NUM_LENGTHS - 1)
    return 2 * (_NUM_LENGTHS * min(turn, NUM_TURNS - 1) + length) + (num_hits > 1)


def turn_of(kind: int) -> int:
    """The turn of the request that used pages of a kind last."""
    return kind // (2 * _NUM_LENGTHS)


@dataclass(frozen=True, slots=True)
class Worths:
    """What a review finds."""

    of_kind_s: tuple[float, ...]
    """How long after their last use pages of each kind are worth keeping, at some price."""
    kept_s: tuple[float, ...]
    """How long the room lets them stay: all for as much longer or shorter than that."""
    lru_s: float
    """How long LRU would keep all pages in the same room."""


@dataclass(frozen=True, slots=True)
class _Course:
    """What becomes of pages from their last use on, per kind and end of a bucket of ages.

    Both begin with 0 at age 0.
    """

    used: Floats
    """The share that is used by then."""
    held_s: Floats
    """The mean seconds for which they are held if they are kept until then."""

    def at(self, amounts: Floats, ages_s: Floats) -> Floats:
        """One of these at other ages, which are per case and kind."""
        ages_s = np.clip(ages_s, 0.0, _EDGES_S[-1] - 1)
        buckets = (2 * np.log2(ages_s + 1)).astype(np.int64)
        kinds = np.arange(len(amounts))
        parts = (ages_s - _EDGES_S[buckets]) / _WIDTHS_S[buckets]
        low, high = amounts[kinds, buckets], amounts[kinds, buckets + 1]
        found: Floats = low + parts * (high - low)
        return found


def worths(uses: Floats, waited_s: Floats, pages: Floats, mean_held_s: float) -> Worths:
    """How long pages of each kind are worth keeping, at the price that yields most uses.

    `uses`, `waited_s`: per kind and bucket of ages, how often pages were used again at that age,
    and the seconds that they had been waiting at it. `pages`: per kind, how many were used again or
    went. `mean_held_s`: the mean time that the tier holds pages after a use.
    """
    rates = _rates(uses, waited_s)
    course = _course_of(rates)
    part = pages / pages.sum()

    # Per price, kind and bucket: what it yields to keep pages until the bucket's end.
    prices = rates.max() * 2.0 ** (-np.arange(_NUM_PRICES) / 3)
    yields = course.used - prices[:, None, None] * course.held_s
    wanted_s: Floats = np.vstack((_EDGES_S[yields.argmax(axis=2)], np.zeros(len(part))))

    # The last case is LRU. No case may take more room than there is, nor leave any.
    low_s = np.full(len(wanted_s), -_EDGES_S[-1])
    high_s = -low_s
    for _ in range(_NUM_HALVINGS):
        middle_s = (low_s + high_s) / 2
        held_s = (course.at(course.held_s, wanted_s + middle_s[:, None]) * part).sum(axis=1)
        low_s = np.where(held_s <= mean_held_s, middle_s, low_s)
        high_s = np.where(held_s <= mean_held_s, high_s, middle_s)
    kept_s: Floats = np.maximum(0.0, wanted_s + low_s[:, None])
    best = int((course.at(course.used, kept_s) * part).sum(axis=1).argmax())
    return Worths(
        tuple(wanted_s[best].tolist()), tuple(kept_s[best].tolist()), float(kept_s[-1, 0])
    )


def _course_of(rates: Floats) -> _Course:
    left = np.exp(-np.cumsum(rates * _WIDTHS_S, axis=1))
    before = np.hstack((np.ones((len(rates), 1)), left[:, :-1]))
    used = before - left
    waited_s = np.where(rates > 0, used / np.maximum(rates, 1e-30), before * _WIDTHS_S)
    start = np.zeros((len(rates), 1))
    return _Course(
        used=np.hstack((start, used.cumsum(axis=1))),
        held_s=np.hstack((start, waited_s.cumsum(axis=1))),
    )


def _rates(uses: Floats, waited_s: Floats) -> Floats:
    """Uses per second by kind and age: a kind of which little is known is like the others."""
    total_waited_s = waited_s.sum(axis=0)
    average = uses.sum(axis=0) / np.maximum(total_waited_s, 1e-9)
    expected = (waited_s * average).sum(axis=1)
    factor = (uses.sum(axis=1) + _PRIOR_USES) / (expected + _PRIOR_USES)
    base = average * factor[:, None]
    prior_s = _PRIOR_USES / np.maximum(base, 1e-30)
    rates: Floats = np.where(base > 0, (uses + _PRIOR_USES) / (waited_s + prior_s), 0.0)
    return rates


def _spread(found: Worths, known: NDArray[np.int64]) -> Worths:
    """The same for all kinds, of which these are known."""
    of_kind_s, kept_s = np.zeros(_NUM_KINDS), np.full(_NUM_KINDS, found.lru_s)
    of_kind_s[known], kept_s[known] = found.of_kind_s, found.kept_s
    return Worths(tuple(of_kind_s.tolist()), tuple(kept_s.tolist()), found.lru_s)


class ReuseChances:
    """Owns: what one tier has seen of reuse, how long each kind of pages is worth keeping, and the
    last use of pages that are gone, of which some come back.

    All times are those of uses. It takes less than a MiB. Until enough was seen, and whenever
    its advice has not been better of late than LRU would have been, all worths are 0.
    """

    def __init__(self) -> None:
        size = _NUM_KINDS * _NUM_BUCKETS
        self._uses = [0.0] * size
        """Uses by kind and by bucket of the age at which they came."""
        self._ends = [0.0] * size
        """The same, with pages that were never used again as far as is known."""
        self._rests_s = [0.0] * size
        """The seconds of each of these since the beginning of its bucket."""
        self._pages = [0.0] * _NUM_KINDS
        """Pages that were used again or went, by kind."""
        self._held_s = 0.0
        """The seconds for which all these pages were held since the use before."""
        self._num_seen = 0
        self._num_used = 0
        self._num_dropped = 0
        self._num_requests = 0
        self._next_review = _MIN_REVIEW_REQUESTS

        self._now_s = 0.0
        self._worths_s = (0.0,) * _NUM_KINDS
        self._advice: Worths | None = None
        """What the last review found, heeded or not."""
        self._gained_pages = 0.0
        self._all_pages = 0.0

        self._gone_keys = array("Q", bytes(8 * _NUM_GONE))
        self._gone_kinds = array("b", bytes(_NUM_GONE))
        self._gone_used_s = array("d", bytes(8 * _NUM_GONE))
        self._gone_pages = array("q", bytes(8 * _NUM_GONE))

    def worth_s(self, kind: int) -> float:
        """How long after their last use pages of a kind are worth keeping; 0: as long as others."""
        return self._worths_s[kind]

    @property
    def most_s(self) -> float:
        """How long after their last use pages of the best kind are worth keeping."""
        return max(self._worths_s)

    @property
    def is_heeded(self) -> bool:
        """Whether some kind is worth more than another now."""
        return any(self._worths_s)

    def begin_request(self, now_s: float) -> bool:
        """Note that a request begins to use pages; reviews what was seen now and then.

        Returns whether worths may be others now.
        """
        self._now_s = max(self._now_s, now_s)
        self._num_requests += 1
        if self._num_requests < self._next_review:
            return False
        num_until = min(_MAX_REVIEW_REQUESTS, self._num_requests // 3)
        self._next_review = self._num_requests + max(_MIN_REVIEW_REQUESTS, num_until)
        self._review()
        return True

    def used_again(self, kind: int, used_s: float, num_pages: int) -> None:
        """Note a use, at the time of the last request, of pages that were there."""
        age_s = self._now_s - used_s
        if age_s < 0.0:
            age_s = 0.0
        self._see(kind, age_s, 1.0)
        self._num_used += 1
        self._pages[kind] += num_pages
        self._held_s += age_s * num_pages
        if self._advice is not None:
            self._judge(self._advice, kind, age_s, num_pages)

    def dropped(self, kind: int, used_s: float, num_pages: int) -> None:
        """Note that pages have made way for others."""
        self._num_dropped += 1
        self._pages[kind] += num_pages
        self._held_s += max(0.0, self._now_s - used_s) * num_pages

    def gone(self, key: PageKey, kind: int, used_s: float, num_pages: int) -> None:
        """Note that of a run of pages the first is gone, too; this is its key."""
        number = int.from_bytes(key[:8], "big") or 1
        slot = number % _NUM_GONE
        if self._gone_keys[slot]:
            age_s = max(0.0, self._now_s - self._gone_used_s[slot])
            self._see(self._gone_kinds[slot], age_s, 0.0)
        self._gone_keys[slot] = number
        self._gone_kinds[slot] = kind
        self._gone_used_s[slot] = used_s
        self._gone_pages[slot] = num_pages

    def come_back(self, key: PageKey) -> int | None:
        """Note that pages have come, this one first; returns the turn of their last use."""
        number = int.from_bytes(key[:8], "big") or 1
        slot = number % _NUM_GONE
        if self._gone_keys[slot] != number:
            return None
        kind = self._gone_kinds[slot]
        age_s = max(0.0, self._now_s - self._gone_used_s[slot])
        self._gone_keys[slot] = 0
        self._see(kind, age_s, 1.0)
        if self._advice is not None:
            self._judge(self._advice, kind, age_s, self._gone_pages[slot])
        return turn_of(kind)

    def _see(self, kind: int, age_s: float, num_uses: float) -> None:
        bucket = int(2 * math.log2(age_s + 1))
        if bucket >= _NUM_BUCKETS:
            bucket = _NUM_BUCKETS - 1
        place = kind * _NUM_BUCKETS + bucket
        self._uses[place] += num_uses
        self._ends[place] += 1
        # Where a bucket begins, a logarithm may be a bit too large.
        if age_s > _EDGES[bucket]:
            self._rests_s[place] += age_s - _EDGES[bucket]
        self._num_seen += 1

    def _judge(self, advice: Worths, kind: int, age_s: float, num_pages: int) -> None:
        """Count what the last advice gains against LRU, by uses that it did not know of."""
        self._all_pages += num_pages
        is_kept, is_kept_by_lru = age_s < advice.kept_s[kind], age_s < advice.lru_s
        self._gained_pages += num_pages * (is_kept - is_kept_by_lru)

    def _review(self) -> None:
        if min(self._num_used, self._num_dropped) < _MIN_SEEN:
            return
        uses = np.array(self._uses).reshape(_NUM_KINDS, _NUM_BUCKETS)
        waited_s = self._waited_s()
        pages = np.array(self._pages)
        known = np.flatnonzero(pages)
        mean_held_s = self._held_s / pages.sum()
        found = worths(uses[known], waited_s[known], pages[known], mean_held_s)
        self._advice = _spread(found, known)
        is_better = self._gained_pages > _MIN_GAIN * self._all_pages
        self._worths_s = self._advice.of_kind_s if is_better else (0.0,) * _NUM_KINDS
        self._gained_pages *= _KEPT_PER_REVIEW
        self._all_pages *= _KEPT_PER_REVIEW
        if self._num_seen > _MAX_SEEN:
            self._fade()

    def _waited_s(self) -> Floats:
        """Seconds that pages waited, by kind and bucket of ages; those that are gone go on so."""
        ends = np.array(self._ends)
        rests_s = np.array(self._rests_s)
        keys = np.frombuffer(self._gone_keys, dtype=np.uint64)
        slots = np.flatnonzero(keys)
        ages_s = np.frombuffer(self._gone_used_s, dtype=np.float64)[slots]
        ages_s = np.maximum(0.0, self._now_s - ages_s)
        buckets = np.minimum((2 * np.log2(ages_s + 1)).astype(np.int64), _NUM_BUCKETS - 1)
        kinds = np.frombuffer(self._gone_kinds, dtype=np.int8)[slots].astype(np.int64)
        places = kinds * _NUM_BUCKETS + buckets
        ends += np.bincount(places, minlength=len(ends))
        rests = np.maximum(0.0, ages_s - _EDGES_S[buckets])
        rests_s += np.bincount(places, rests, minlength=len(ends))

        # Whatever ends in a later bucket has waited through all before it.
        shape = (_NUM_KINDS, _NUM_BUCKETS)
        through = ends.reshape(shape)[:, ::-1].cumsum(axis=1)[:, ::-1] - ends.reshape(shape)
        waited_s: Floats = through * _WIDTHS_S + rests_s.reshape(shape)
        return waited_s

    def _fade(self) -> None:
        for column in (self._uses, self._ends, self._rests_s, self._pages):
            column[:] = [value / 2 for value in column]
        self._held_s /= 2
        self._num_seen //= 2

    def figures(self) -> dict[str, Any]:
        """How long each kind is worth keeping now, and what the last advice has gained."""
        return {"worths_s": self._worths_s, "advice": self._advice, "gained": self._gained_pages}

    def check(self) -> None:
        """Raises AccountingError unless all that was counted is possible."""
        pairs = zip(self._uses, self._ends, strict=True)
        if any(not 0 <= uses <= ends for uses, ends in pairs):
            raise AccountingError("more uses of pages are counted than ends of their waiting")
        if (
            min(self._rests_s) < 0
            or self._held_s < 0
            or not all(map(math.isfinite, self._worths_s))
        ):
            raise AccountingError(
                f"pages have waited {min(self._rests_s)} s or were held {self._held_s} s; expected "
                f"0 or more"
            )


_EDGES: tuple[float, ...] = tuple(_EDGES_S.tolist())
