"""What one ingress believes of one node: its keys, its load, and what it was sent itself.

How a wrong belief is refuted. Too good: the next report replaces what is believed of the load, and
says which requests it knows of; those that it does not know of count in full until it does. A node
that is silent for longer than it said answers no sooner than it has been silent, and one that lets
a request wait for longer than was predicted, whatever it reports, no sooner than it has been late:
so it is asked less and less, and again once it is heard or has answered. Too bad: work that was
reported counts as done with time, up to the next report; and a request that waits while a later one
is answered waits for something of its own, which says nothing of the node.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from raydix.errors import AccountingError
from raydix.ids import RequestId
from raydix.runtime.cache.page_key import MIRROR_KEY_BYTES
from raydix.runtime.config.policies import EngineRole
from raydix.runtime.messages.kv_events import (
    KvEvent,
    KvNews,
    PagesRemoved,
    PagesStored,
    Tier,
    TierCleared,
)
from raydix.runtime.messages.line import Line
from raydix.runtime.messages.routing import NodeReport
from raydix.runtime.routing.choice import Place
from raydix.runtime.routing.events import NodeFound
from raydix.runtime.routing.growing_filter import GrowingFilter
from raydix.runtime.routing.key_filter import HashedKeys, Words, words_of
from raydix.runtime.routing.load_average import AVERAGED_S
from raydix.runtime.routing.split import TakeOver

_TIMES_COMPUTED = 2.0
"""What is computed takes the room of as many other pages, which have to be computed again, too, if
anybody comes back to them.
"""
_FIRST_PAGES = 8
_NS_PER_S = 10**9
_Keys = dict[tuple[Tier, int | None], GrowingFilter]
"""The pages of each tier, and lane."""


@dataclass(frozen=True, slots=True)
class Holding:
    """How many leading pages of a prompt a node has."""

    num_near: int
    """Pages that are in L1 already, or will be computed there before."""
    num_held: int
    """Pages that are in L1 or L2."""
    num_there: int
    """Pages that are in L1 or L2, or will be computed there before."""


@dataclass(frozen=True, slots=True)
class Need:
    """What it takes to serve a request on a node."""

    place: Place
    delayed_s: float
    """How much later those who decode there get their tokens, all together."""
    num_cached_pages: int
    num_pulled_pages: int


@dataclass(frozen=True, slots=True)
class _Booking:
    number: int
    own_ns: int
    coming: tuple[int, ...]
    """The words of the keys that the request is to bring to the node."""


class Node:
    """Owns: what is believed of one node, from when it is found until it is gone."""

    def __init__(self, found: NodeFound) -> None:
        self.name = found.name
        self._keys: _Keys = {}
        self._told: _Keys | None = None
        """The keys as they are told anew, until that is whole."""
        self._report: NodeReport | None = None
        self._report_s = 0.0
        self._num_sent = 0
        self._bookings: dict[RequestId, _Booking] = {}
        self._awaited: dict[int, float] = {}
        """When the first token of each booking is to come, by number, but of those passed over."""
        self._expected: set[RequestId] = set()
        """Requests that will go on here, and have no first token yet."""
        self._num_unseen = 0
        self._unseen_ns = 0
        """The time that the bookings take of which the last report did not know: in whole numbers,
        which add up in any order.
        """
        self._coming: dict[int, RequestId] = {}
        """The request that is to bring a key, by the key's word."""
        self._brought: list[tuple[RequestId, tuple[int, ...]]] = []
        """What requests have brought since the last report, before which changes of keys come."""

    @property
    def num_keys(self) -> int:
        """The number of pages that are known, in all tiers."""
        return sum(map(len, self._keys.values()))

    @property
    def requests(self) -> tuple[RequestId, ...]:
        """The requests that were sent there and whose prompts have not been computed yet."""
        return tuple(self._bookings)

    def begin_following(self) -> None:
        """All keys are told anew; what is known counts until that is whole."""
        self._told = {}

    def follow(self, news: KvNews) -> None:
        """Follow what is told of the node's keys."""
        keys = self._keys if self._told is None else self._told
        for event in news.events:
            self._follow(event, keys)
        if news.is_whole and self._told is not None:
            self._keys, self._told = self._told, None

    def hear(self, report: NodeReport, now_s: float) -> None:
        """Believe a report, and only count beside it what it does not know of."""
        self._report, self._report_s = report, now_s
        for request_id, words in self._brought:
            for word in words:
                if self._coming.get(word) == request_id:
                    del self._coming[word]
        self._brought = []

        unseen = [each.own_ns for each in self._bookings.values() if self._is_unseen(each)]
        self._num_unseen, self._unseen_ns = len(unseen), sum(unseen)

    @property
    def page_size(self) -> int | None:
        """Tokens per page; None: it has not reported yet, and nothing can be predicted."""
        return None if self._report is None else self._report.page_size

    @property
    def role(self) -> EngineRole:
        """What the node is for, as it says; before its first report it stands for itself."""
        return EngineRole.BOTH if self._report is None else self._report.role

    def shares_l2(self, other: "Node") -> bool:
        """Whether both have one L2, as far as they have told."""
        own, others = self._report, other._report
        return own is not None and others is not None and own.l2 is not None and own.l2 == others.l2

    def find(self, keys: HashedKeys) -> Holding:
        """How much of a prompt is there, of which these are the keys."""
        num_held = _num_leading(keys, list(self._keys.values()))
        held = keys.part(0, num_held)
        lanes = [each for (tier, _), each in self._keys.items() if tier is Tier.L1]
        num_near = max((_num_leading(held, [each]) for each in lanes), default=0)

        num_there = num_held
        while num_there < len(keys) and int(keys.words[num_there]) in self._coming:
            num_there += 1
        # What is computed there before is in L1 then.
        return Holding(num_near + num_there - num_held, num_held, num_there)

    def need(
        self,
        holding: Holding,
        *,
        num_tokens: int,
        elsewhere: Holding,
        num_joining: int,
        now_s: float,
    ) -> Need:
        """What it takes to serve a prompt of which the node has `holding`.

        `elsewhere`: the most that any node has of it. `num_joining`: requests that are being handed
        over to the node. Raises ValueError before the first report.
        """
        report = self._told_report()
        page_size, num_there = report.page_size, holding.num_there
        load_s = _predict_s(report.load, num_there - holding.num_near)
        num_missing = num_tokens - num_there * page_size
        fetch_s, num_pulled = 0.0, max(0, elsewhere.num_held - num_there)
        if report.pull is not None and num_pulled:
            fetch_s = report.pull.predict_s(num_pulled)
        if report.pull is None or fetch_s >= num_pulled * page_size * report.prefill.unit_s:
            fetch_s, num_pulled = 0.0, 0

        compute_s = report.prefill.predict_s(num_missing - num_pulled * page_size)
        wait_s = self._wait_s(report, now_s)
        place = Place(
            wait_s=wait_s,
            own_s=load_s + fetch_s + compute_s,
            caused_s=_caused_s(report, wait_s, compute_s),
            is_preferred=False,
            num_near_pages=holding.num_near,
            num_requests=report.num_requests + self._num_unseen,
        )
        delayed_s = compute_s * (self._num_decoding(report) + num_joining)
        return Need(place, delayed_s, num_there, num_pulled)

    def take_over(
        self,
        holding: Holding,
        first: "Node",
        *,
        num_tokens: int,
        after_s: float,
        num_joining: int,
        now_s: float,
    ) -> TakeOver | None:
        """What it takes that a request goes on here whose prompt another node has computed.

        `after_s`: the time until its first token; what waits here now is done by then, or in part.
        `num_joining`: as of `need`.

        None: its pages would not come here, or as many wait here as may: what goes on is taken in
        however many wait. Raises ValueError before the first report of either.
        """
        report, other = self._told_report(), first._told_report()
        if report.page_size != other.page_size or report.is_full:
            return None
        num_pages = num_tokens // report.page_size
        fetch_s = 0.0
        if not self.shares_l2(first):
            if report.pull is None:
                return None
            fetch_s = _predict_s(report.pull, max(0, num_pages - holding.num_held))

        # The first node puts away what it has computed, which takes as long as to load it there.
        num_loaded = max(0, num_pages - holding.num_near)
        copies_s = _predict_s(other.load, num_loaded) + _predict_s(report.load, num_loaded)
        compute_s = report.prefill.predict_s(num_tokens + 1 - num_pages * report.page_size)
        wait_s = max(0.0, self._wait_s(report, now_s) - after_s)
        return TakeOver(
            foreseen_s=wait_s + copies_s + fetch_s + compute_s,
            computed_s=compute_s,
            anew_s=report.prefill.predict_s(num_tokens + 1 - holding.num_held * report.page_size),
            num_decoding=self._num_decoding(report) + num_joining,
        )

    def expect(self, request_id: RequestId) -> None:
        """A request will go on here once another node has given its first token."""
        self._expected.add(request_id)

    def stop_expecting(self, request_id: RequestId) -> None:
        """A request has come, or will not; others change nothing."""
        self._expected.discard(request_id)

    def book(self, request_id: RequestId, words: Words, need: Need, now_s: float) -> int:
        """Count a request that is sent to the node; returns its number, from 1 on."""
        self.release(request_id)
        self.note_sent()
        coming = tuple(words[need.num_cached_pages :].tolist())
        for word in coming:
            self._coming.setdefault(word, request_id)
        own_ns = round(need.place.own_s * _NS_PER_S)
        booking = self._bookings[request_id] = _Booking(self._num_sent, own_ns, coming)
        self._awaited[booking.number] = now_s + need.place.first_token_s
        if self._is_unseen(booking):
            self._num_unseen += 1
            self._unseen_ns += own_ns
        return self._num_sent

    def note_sent(self) -> None:
        """One more request is sent to the node, which will tell how many of them it has seen."""
        self._num_sent += 1

    def note_first_token(self, request_id: RequestId, now_s: float) -> None:
        """The node answers: what was due before, and was sent before, is no sign that it does not.

        The request stays booked until `release`; others change nothing.
        """
        booking = self._bookings.get(request_id)
        if booking is None:
            return
        older = takewhile(lambda item: item[0] < booking.number, self._awaited.items())
        for number in [number for number, due_s in older if due_s < now_s]:
            del self._awaited[number]

    def release(self, request_id: RequestId) -> None:
        """The prompt of a request has been computed, or never will be; others change nothing."""
        booking = self._bookings.pop(request_id, None)
        if booking is not None:
            self._awaited.pop(booking.number, None)
            self._brought.append((request_id, booking.coming))
            if self._is_unseen(booking):
                self._num_unseen -= 1
                self._unseen_ns -= booking.own_ns

    def _told_report(self) -> NodeReport:
        if self._report is None:
            raise ValueError(f"node {self.name} has not reported yet; ask only nodes that have")
        return self._report

    def _num_decoding(self, report: NodeReport) -> int:
        """Requests that decode, or are about to."""
        return report.num_decoding + len(self._expected)

    def _wait_s(self, report: NodeReport, now_s: float) -> float:
        age_s = max(0.0, now_s - self._report_s)
        # What was to be done by the next report is believed; what is later has to be shown.
        done_s = min(age_s, report.interval_s)
        silent_s = max(0.0, age_s - report.interval_s)
        late_s = max(0.0, now_s - next(iter(self._awaited.values()), now_s))
        # Other ingresses see what this one saw and send as much: half of it comes before this.
        part = (1 + report.num_ingresses) / 2
        prompts_s = max(0.0, report.busy_s - done_s) + self._unseen_ns / _NS_PER_S * part
        # Prompts are computed while a slot is waited for.
        slot_s = report.slot_wait_s(self._num_unseen * part) - done_s
        return max(prompts_s, slot_s) + max(silent_s, late_s)

    def _is_unseen(self, booking: _Booking) -> bool:
        """Whether the last report did not know of it."""
        return self._report is None or booking.number > self._report.num_seen

    def _follow(self, event: KvEvent, keys: _Keys) -> None:
        """Follow one event."""
        place = event.tier, event.lane
        match event:
            case TierCleared():
                keys.pop(place, None)
            case PagesStored():
                held = keys.setdefault(place, GrowingFilter())
                held.add(words_of(event.keys, MIRROR_KEY_BYTES))
            case PagesRemoved():
                if place in keys:
                    keys[place].remove(words_of(event.keys, MIRROR_KEY_BYTES))

    def check(self) -> None:
        """Raise AccountingError unless what is coming belongs to requests that were sent."""
        for keys in (*self._keys.values(), *(self._told or {}).values()):
            keys.check()
        brought = {request_id for request_id, _ in self._brought}
        strangers = set(self._coming.values()) - self._bookings.keys() - brought
        unsent = self._awaited.keys() - {each.number for each in self._bookings.values()}
        unseen = [each.own_ns for each in self._bookings.values() if self._is_unseen(each)]
        counted = self._num_unseen, self._unseen_ns
        if strangers or unsent or counted != (len(unseen), sum(unseen)):
            raise AccountingError(
                f"node {self.name}: {len(strangers)} requests bring keys and are not booked; "
                f"{len(unsent)} are awaited and not booked; "
                f"{counted} are unseen and their time in ns, {len(unseen)} and {sum(unseen)} found"
            )


def _caused_s(report: NodeReport, wait_s: float, compute_s: float) -> float:
    """How much longer others wait if a request is computed on a node, all together.

    Whoever comes before the node is idle again waits `compute_s` longer. To be idle it has to do
    what is queued and this, in the part of its time that it has left; what comes later than that
    part was averaged over is not foreseen.
    """
    busy_s = wait_s + compute_s
    until_idle_s = busy_s / (1.0 - report.busy_fraction + busy_s / AVERAGED_S)
    return _TIMES_COMPUTED * report.arrivals_per_s * until_idle_s * compute_s


def _num_leading(keys: HashedKeys, filters: Sequence[GrowingFilter]) -> int:
    """How many pages are in any of these before the first that is not.

    Most nodes have nothing of most prompts: few pages are looked at first, then four times as many.
    """
    start, num_looked_at = 0, _FIRST_PAGES
    while filters and start < len(keys):
        part = keys.part(start, start + num_looked_at)
        gaps = np.flatnonzero(~np.logical_or.reduce([each.has(part) for each in filters]))
        if len(gaps):
            return start + int(gaps[0])
        start += len(part)
        num_looked_at *= 4
    return start


def _predict_s(line: Line, amount: int) -> float:
    """Nothing takes no time."""
    return line.predict_s(amount) if amount else 0.0
