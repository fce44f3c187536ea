"""Sessions that go on at a time that is known: their prompts come to L2, and to L1, before it."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from raydix.errors import AccountingError
from raydix.ids import UserId
from raydix.runtime.cache.deadlines import Deadlines
from raydix.runtime.cache.page_key import KEY_BYTES, ChainKeys
from raydix.runtime.messages.retention import EndUse, Retention, RetentionKind
from raydix.runtime.scheduler.life.early_loads import EarlyLoads, name_of
from raydix.runtime.scheduler.life.requests import Requests
from raydix.runtime.scheduler.request.chain import Chain
from raydix.runtime.scheduler.request.prefetch_hint import PrefetchHint
from raydix.runtime.scheduler.request.returning import Returning
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.sources.kv_source import KvSource
from raydix.runtime.scheduler.timers import Alarm, Timers

_MAX_TOKENS = 1 << 24
"""The most tokens of all prompts that are remembered; each takes 4 bytes and its part of a key."""
_MAX_LOOKED_UP = 64
"""The most sessions whose prompts wait for their lookup; later ones have their turn behind them."""
_LEAD_FACTOR = 2.0
"""A prompt is looked up so many times as long before its session goes on as its fetch may take."""
_LEAD_S = 0.5
"""Seconds by which all is to be there before that."""
_LEAD_FRACTION = 0.25
"""The part of a pause that is left for the fetch at least: L3 may be slower than it was last."""


def lead_s(fetch_s: float, pause_s: float) -> float:
    """How long before a session goes on its prompt is looked up, if L3 brings it in `fetch_s`."""
    return max(_LEAD_S + _LEAD_FACTOR * fetch_s, _LEAD_FRACTION * pause_s)


class SessionReturns:
    """Owns: the prompts of sessions that rest, and when each of them is brought back to L2.

    From there `EarlyLoads` brings it to L1. Nothing is remembered without an L2. The sessions that
    have rested for longest are forgotten for others; what is forgotten or comes too late is fetched
    when it is asked for.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        *,
        requests: Requests,
        source: KvSource,
        timers: Timers,
        early: EarlyLoads,
    ) -> None:
        self._settings = settings
        self._requests = requests
        self._source = source
        self._timers = timers
        self._early = early
        self._chains: OrderedDict[UserId, tuple[Chain, int]] = OrderedDict()
        """Per session its prompt with what followed, and its priority."""
        self._num_tokens = 0
        self._expected: dict[UserId, tuple[float, EndUse]] = {}
        """Per session when it goes on, and who it is."""
        self._due = Deadlines[UserId]()
        """When each of these is looked up."""
        self._alarm = Alarm()
        self.num_begun = 0
        """The sessions that were looked up so far."""

    @property
    def num_remembered(self) -> int:
        """The number of sessions whose prompts are remembered."""
        return len(self._chains)

    @property
    def num_loaded(self) -> int:
        """The number of sessions so far that were loaded to L1 ahead of their requests."""
        return self._early.num_begun

    def remember(self, user: UserId, chain: Chain, priority: int) -> None:
        """Remember the prompt of a session that rests, with what followed, in place of another."""
        self._drop_chain(user)
        if not self._source.view.is_usable or not self._settings.prefix_caching:
            return
        self._chains[user] = chain, priority
        self._num_tokens += chain.num_tokens
        while self._num_tokens > _MAX_TOKENS:
            self.forget(next(iter(self._chains)))

    def expect(self, rests: EndUse, until_s: float, now_s: float) -> None:
        """Have a session's prompt in L1 by `until_s`, when the session is to go on."""
        if rests.user not in self._chains:
            return
        chain, priority = self._chains[rests.user]
        session = Returning(chain=chain, priority=priority, rests=rests, until_s=until_s)
        self._early.expect(session, now_s)
        if not self._source.view.has_storage:
            return
        reaches = self._settings.reaches
        num_pages = chain.num_tokens // self._settings.page_size
        num_fetched = [num_pages if each is None else min(each, num_pages) for each in reaches]
        rate = self._source.origins.storage.rate
        fetch_s = rate.predict_s(self._settings.bytes_of(num_fetched), now_s)
        fetch_s = max(fetch_s, self._source.view.l3_answer_s)
        due_s = max(now_s, until_s - lead_s(fetch_s, until_s - now_s))
        self._expected[rests.user] = until_s, rests
        self._due.set(rests.user, due_s)
        self._wake(now_s)

    def _wake(self, now_s: float) -> None:
        """Have the first session looked up that is expected."""
        time_s = self._due.next_s
        if time_s is not None and self._alarm.advance(time_s, now_s):
            self._timers.add(time_s)

    def stop_expecting(self, user: UserId) -> None:
        """Nobody knows any more when a session goes on, or it has: what is under way ends."""
        self._expected.pop(user, None)
        self._due.forget(user)
        self._early.stop_expecting(user)
        self._end_lookup(user)

    def _end_lookup(self, user: UserId) -> None:
        hint = self._requests.hints.get(name_of(user))
        if hint is not None:
            self._source.cancel_lookup(hint)
            self._requests.remove_hint(hint)

    def forget(self, user: UserId) -> None:
        """Forget a session: it has ended."""
        self.stop_expecting(user)
        self._drop_chain(user)

    def _drop_chain(self, user: UserId) -> None:
        remembered = self._chains.pop(user, None)
        if remembered is not None:
            self._num_tokens -= remembered[0].num_tokens

    def load_due(self, num_kept: Callable[[int], int], now_s: float) -> None:
        """Have those brought whose time has come. `num_kept`: the pages that a lane keeps."""
        self._early.begin_due(num_kept, now_s)

    def look_up_due(self, now_s: float) -> None:
        """Have those looked up whose time has come, unless they go on already."""
        while self._num_under_way < _MAX_LOOKED_UP:
            if (user := self._due.take_due(now_s)) is None:
                self._wake(now_s)
                return
            self._begin(*self._expected.pop(user), now_s)

    @property
    def _num_under_way(self) -> int:
        return sum(hint.client is None for hint in self._requests.hints.values())

    def _begin(self, until_s: float, rests: EndUse, now_s: float) -> None:
        assert rests.session_id is not None, "a session that is expected has a name"
        if self._requests.has_session(rests.session_id, rests.cache_salt):
            return
        remembered, _ = self._chains[rests.user]
        keys = remembered.keys(remembered.num_tokens // self._settings.page_size)
        if self._is_in_l2(keys):
            return
        chain = Chain(
            remembered.token_ids(),
            cache_salt=rests.cache_salt,
            page_size=self._settings.page_size,
        )
        chain.adopt_keys(keys)
        # While it is looked up it is in use; then it waits for the rest of the pause.
        left_s = max(0.0, until_s - now_s)
        pause = Retention(kind=RetentionKind.RESUME, seconds=left_s)
        hint = PrefetchHint(
            request_id=name_of(rests.user), chain=chain, rests=replace(rests, retention=pause)
        )
        self._requests.add_hint(hint)
        self.num_begun += 1

    def _is_in_l2(self, keys: bytes) -> bool:
        """Whether L2 has a chain, as far as is known: chains lose their last page first."""
        last = len(keys) // KEY_BYTES - 1
        known, chain_keys = self._source.view.keys, ChainKeys(keys)
        groups = range(self._settings.num_groups)
        return last < 0 or all(known.has_page(group, chain_keys, last) for group in groups)

    def check(self) -> None:
        """Raise AccountingError unless tokens add up and only remembered sessions are expected."""
        self._early.check()
        num_found = sum(chain.num_tokens for chain, _ in self._chains.values())
        if num_found != self._num_tokens or num_found > _MAX_TOKENS:
            raise AccountingError(
                f"prompts of sessions have {num_found} tokens; {self._num_tokens} are counted, "
                f"{_MAX_TOKENS} allowed"
            )
        self._due.check()
        if not self._due.names == self._expected.keys() <= self._chains.keys():
            raise AccountingError(f"{len(self._expected)} sessions are expected; some are unknown")
