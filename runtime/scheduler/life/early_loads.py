"""Sessions that are about to go on: what L2 has of their prompts comes to L1 ahead of them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from raydix.errors import AccountingError
from raydix.ids import RequestId, UserId
from raydix.runtime.cache.deadlines import Deadlines
from raydix.runtime.cache.page_key import ChainKeys
from raydix.runtime.cache.radix_tree import Match
from raydix.runtime.scheduler.life.load_choice import LoadChoice
from raydix.runtime.scheduler.life.requests import Requests
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.request.returning import Returning
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.sources.cached_prefix import CachedPrefix, find_prefix
from raydix.runtime.scheduler.sources.kv_source import KvSource
from raydix.runtime.scheduler.timers import Alarm, Timers

_LEAD_FACTOR = 2.0
"""A load begins so many times as long before its session goes on as it is believed to take."""
_LEAD_S = 0.25
"""Seconds by which pages are to be there before that: a step of others may have to end first."""
_PATIENCE_S = 1.0
"""Seconds for which a session that has not gone on in time is still brought, once there is room."""
_MAX_EXPECTED = 65_536
_MAX_LOOKS = 4
"""The most sessions that are looked at with one event; others have their turn with the next."""
_RETRY_S = 0.05
"""Seconds after which a session is looked at again for which there was no room; until then others
are not looked at either.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spare:
    """The pages of a lane that sees everything, as far as an early load may take some."""

    num_waiting: int
    """Requests that wait for room, here or for a lane."""
    num_freeable: int
    """Pages that are free, will be, or can be evicted."""
    num_kept: int
    """Pages among them, at most, that sessions have asked to keep."""
    num_to_come: int
    """Pages that running requests still need."""
    num_left: int
    """Pages that early loads may hold beside those that they hold, and the session's in L1."""


def num_early_pages(num_l2_pages: int, spare: Spare) -> int:
    """How many of a session's pages in L2 come to L1 early: none that anybody else may need."""
    if spare.num_waiting:
        return 0
    num_free = spare.num_freeable - spare.num_kept - spare.num_to_come
    return max(0, min(num_l2_pages, num_free, spare.num_left))


def spare_of(lane: Lane, requests: Requests, num_matched: int, num_kept: int) -> Spare:
    """The pages of a lane that may be taken beside so many that L1 has of what is to come."""
    full = [group for group, reach in enumerate(lane.settings.reaches) if reach is None]
    freeable, to_come = lane.l1.num_freeable(), lane.prompt_pages_to_come()
    return Spare(
        num_waiting=len(lane.waiting) + len(requests.unplaced),
        num_freeable=min(freeable[group] for group in full),
        num_kept=num_kept,
        num_to_come=len(lane.running) + max(to_come[group] for group in full),
        num_left=lane.promotions.num_returning() - num_matched,
    )


def lead_s(load_s: float) -> float:
    """How long before a session goes on its load begins, if that takes `load_s`."""
    return _LEAD_S + _LEAD_FACTOR * load_s


class EarlyLoads:
    """Owns: which sessions are to have their pages in L1, and by when.

    A session is brought once, to the lane that has most of it. It waits while others need the room,
    until it goes on or is late.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        *,
        requests: Requests,
        lanes: Sequence[Lane],
        source: KvSource,
        choice: LoadChoice,
        timers: Timers,
        load: Callable[[Lane, Returning, Match, int, float], bool],
    ) -> None:
        """`load` takes room for so many pages behind a match, and orders them; False: no room."""
        self._settings = settings
        self._requests = requests
        self._lanes = lanes
        self._source = source
        self._choice = choice
        self._timers = timers
        self._load = load
        self._expected: dict[UserId, Returning] = {}
        """What each session goes on with."""
        self._due = Deadlines[UserId]()
        """When the load of each of these may begin."""
        self._full_until_s = -math.inf
        """The time before which there is no room, as far as is known."""
        self._alarm = Alarm()
        self.num_begun = 0
        """The sessions that were loaded ahead so far."""

    def expect(self, session: Returning, now_s: float) -> None:
        """Have what L2 has of a session in L1 by the time that it goes on."""
        user = session.rests.user
        if len(self._expected) >= _MAX_EXPECTED and user not in self._expected:
            return
        num_pages = session.chain.num_tokens // self._settings.page_size
        load_s = self._choice.load_s(self._bytes_of(num_pages), now_s)
        self._expected[user] = session
        self._due.set(user, max(now_s, session.until_s - lead_s(load_s)))
        self._wake(now_s)

    def stop_expecting(self, user: UserId) -> None:
        """Nobody knows any more when a session goes on, or it has: a load under way ends."""
        self._drop(user)
        for lane in self._lanes:
            lane.promotions.end(name_of(user))

    def begin_due(self, num_kept: Callable[[int], int], now_s: float) -> None:
        """Load those whose time has come. `num_kept`: the pages that a lane keeps by hints."""
        if now_s >= self._full_until_s:
            for _ in range(_MAX_LOOKS):
                if (user := self._due.take_due(now_s)) is None:
                    break
                if self._is_to_wait(self._expected[user], num_kept, now_s):
                    self._due.set(user, now_s + _RETRY_S)
                else:
                    self._drop(user)
        self._wake(now_s)

    def _drop(self, user: UserId) -> None:
        self._expected.pop(user, None)
        self._due.forget(user)

    def _wake(self, now_s: float) -> None:
        """Have the first session looked at that is expected."""
        if self._due.next_s is not None:
            time_s = max(self._due.next_s, self._full_until_s)
            if self._alarm.advance(time_s, now_s):
                self._timers.add(time_s)

    def _is_to_wait(self, session: Returning, num_kept: Callable[[int], int], now_s: float) -> bool:
        """Begin a session's load; True: it is to be looked at again in a while."""
        rests = session.rests
        assert rests.session_id is not None, "a session that is expected has a name"
        if self._requests.has_session(rests.session_id, rests.cache_salt):
            return False
        if name_of(rests.user) in self._requests.hints:
            # L3 still brings to L2 what is to be loaded.
            return True
        if now_s > session.until_s + _PATIENCE_S or not self._source.view.is_usable:
            return False

        lane, match = self._lane_of(session)
        found = self._find(session, match)
        # Windows are loaded once the request knows which it needs.
        num_l2_pages = max(0, found.num_known_pages - match.num_pages)
        if not self._settings.has_full or not num_l2_pages or not lane.is_attached:
            return False
        if not self._choice.is_load_cheaper(self._bytes_of(num_l2_pages), num_l2_pages, now_s):
            return False
        spare = spare_of(lane, self._requests, match.num_pages, num_kept(lane.index))
        num_pages = num_early_pages(num_l2_pages, spare)
        if not num_pages or not self._load(lane, session, match, num_pages, now_s):
            self._full_until_s = now_s + _RETRY_S
            return True
        self.num_begun += 1
        return False

    def _lane_of(self, session: Returning) -> tuple[Lane, Match]:
        """The lane that has most of a session in L1, and what it has."""
        matches = [(lane, lane.match(session.chain)) for lane in self._lanes]
        return max(matches, key=lambda each: (each[1].num_pages, -len(each[0].running)))

    def _find(self, session: Returning, match: Match) -> CachedPrefix:
        num_pages = session.chain.num_tokens // self._settings.page_size
        keys = ChainKeys(session.chain.keys(num_pages))
        return find_prefix(self._settings, self._source.view.keys, match, keys, max_pages=num_pages)

    def _bytes_of(self, num_pages: int) -> int:
        reaches = self._settings.reaches
        return self._settings.bytes_of([num_pages if reach is None else 0 for reach in reaches])

    def check(self) -> None:
        """Raise AccountingError unless each session that is expected has its time to come."""
        self._due.check()
        if self._due.names != self._expected.keys():
            raise AccountingError(f"{len(self._expected)} sessions are expected; some at no time")


def name_of(user: UserId) -> RequestId:
    """The name of what is done for a session, which no client gives to anything, but by chance."""
    return RequestId(f"return of session {user:016x}")
