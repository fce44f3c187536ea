"""The requests that wait on one lane: whose turn it is, and what each of them waits for."""

import itertools
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TypeVar, assert_never

from raydix.errors import AccountingError
from raydix.ids import PageKey, RequestId
from raydix.runtime.cache.page_key import MIRROR_KEY_BYTES
from raydix.runtime.config.policies import SchedulingPolicy
from raydix.runtime.scheduler.prompt_shares import PromptWork
from raydix.runtime.scheduler.queue.coming_prefixes import ComingPrefixes, stop_keys
from raydix.runtime.scheduler.queue.prefix_turns import PrefixTurns
from raydix.runtime.scheduler.queue.response_turns import ResponseTurns
from raydix.runtime.scheduler.queue.routing_turns import RoutingTurns, RunningKeys
from raydix.runtime.scheduler.queue.short_turns import ShortTurns
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.request.request_order import (
    OrderKey,
    RequestOrder,
    goes_by_match,
    num_to_compute,
    order_key,
)
from raydix.runtime.scheduler.settings import SchedulerSettings

_PIECE = 256
"""The number of requests that have their turn again at once when a page comes; others follow."""
_Key = TypeVar("_Key")
_Turns = RequestOrder | RoutingTurns | ResponseTurns | PrefixTurns
Place = tuple[OrderKey, RequestState]
"""A request with its place in the queue."""


class WaitingQueue:
    """Owns: which requests wait on a lane, their order, and when each of them is looked at again.

    A request whose turn has come is admitted, or lacks room, or waits for something of its own. In
    the last case it is parked, so that others have their turn, until what it waits for may have
    happened: until `wake`, `pages_came` with the page that it lacks, or `leader_stopped`.
    """

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self.requests: dict[RequestId, RequestState] = {}
        """All requests that wait, parked or not, in order of arrival on this lane."""
        self.num_tokens = 0
        """The number of tokens to compute for all that wait, as known when they got their places.

        What several share counts once.
        """
        self.coming = ComingPrefixes()
        self._new: dict[RequestId, int] = {}
        """The number of tokens that each request alone adds to `num_tokens`."""
        self._num_coming: dict[RequestId, int] = {}
        """The number of pages that others were about to bring when a request came, by request."""
        self._work: dict[RequestId, int] = {}
        self._keys: dict[RequestId, OrderKey] = {}
        self._num_cached: dict[RequestId, int] = {}
        """The number of cached pages of each request when its place was chosen."""
        self._running_keys = RunningKeys()
        self._turns = _turns_of(settings.policy, self._running_keys)
        self._short_turns = ShortTurns()
        """The requests of `_turns`, kept by size as well."""

        self._lacking: dict[bytes, dict[RequestId, RequestState]] = {}
        self._lacks: dict[RequestId, bytes] = {}
        """The page that a parked request lacks first, by its short key."""
        self._came: dict[RequestId, RequestState] = {}
        """Parked requests whose page has come, or whose leader has stopped, and that are still to
        have their turn again.
        """

        self._followers: dict[RequestId, dict[RequestId, RequestState]] = {}
        self._leaders: dict[RequestId, RequestId] = {}
        """The request that brings the page for which a parked request waits."""

        self._grown: OrderedDict[RequestId, RequestState] = OrderedDict()
        """Requests whose match has grown since their place was chosen, first come first."""

        self._leader_of: dict[PageKey, RequestId] = {}
        """The admitted or promoted request that brings a page next, by page key."""
        self._led: dict[RequestId, PageKey] = {}

    def __len__(self) -> int:
        return len(self.requests)

    def add(self, request: RequestState, *, num_cached_pages: int, lacks: PageKey | None) -> None:
        """Let a request wait. `lacks`: the first page of its prompt that no tier at hand has."""
        self.requests[request.request_id] = request
        num_coming = self.coming.add(request) if self._settings.prefix_caching else 0
        self._num_coming[request.request_id] = num_coming
        self.place(request, num_cached_pages=num_cached_pages, lacks=lacks)
        self._enter(request)

    def place(self, request: RequestState, *, num_cached_pages: int, lacks: PageKey | None) -> None:
        """Choose a waiting request's place anew, by how much of it is in L1 and L2."""
        page_size = self._settings.page_size
        self._keys[request.request_id] = order_key(request, self._settings, num_cached_pages)
        self._num_cached[request.request_id] = num_cached_pages
        work = num_to_compute(request.num_tokens, num_cached_pages, page_size)
        self._work[request.request_id] = work
        num_coming = self._num_coming[request.request_id]
        new = min(work, num_to_compute(request.num_tokens, num_coming, page_size))
        self.num_tokens += new - self._new.get(request.request_id, 0)
        self._new[request.request_id] = new
        self._grown.pop(request.request_id, None)
        self._lack(request, lacks)
        if request.request_id in self._turns:
            self._enter(request)

    def discard(self, request: RequestState) -> None:
        """Take a request out that will not run, if it waits here."""
        self.coming.discard(request)
        self._take(request)

    def _take(self, request: RequestState) -> None:
        """Take a request out, whose prompt may still come."""
        if self.requests.pop(request.request_id, None) is None:
            return
        self.num_tokens -= self._new.pop(request.request_id)
        del self._work[request.request_id], self._num_coming[request.request_id]
        del self._keys[request.request_id], self._num_cached[request.request_id]
        self._grown.pop(request.request_id, None)
        self._came.pop(request.request_id, None)
        self._take_turn(request)
        self._unpark(request)
        self._lack(request, None)

    def prompt_key(self, request: RequestState, page: int) -> PageKey | None:
        """The key by which other requests may bring a full prompt page; None if they may not."""
        is_full = page < request.chain.num_prompt_pages
        if not self._settings.prefix_caching or not is_full or request.must_score:
            return None
        return request.chain.key(page)

    def key(self, request: RequestState) -> OrderKey:
        """The place of a waiting request."""
        return self._keys[request.request_id]

    def places(self) -> list[Place]:
        """All requests that wait, parked or not, each with its place."""
        return [(self._keys[name], request) for name, request in self.requests.items()]

    def num_cached_pages(self, request: RequestState) -> int:
        """The number of cached pages of a waiting request when its place was chosen."""
        return self._num_cached[request.request_id]

    @property
    def has_turns(self) -> bool:
        """Whether the next plan is to look at some request."""
        return bool(self._came) or len(self._turns) > 0

    def next_turn(self, now_s: float) -> RequestState | None:
        """The first request that is not parked, at this time."""
        if isinstance(self._turns, ResponseTurns):
            return self._turns.first(now_s)
        return self._turns.first()

    def short_turn(self, most_tokens: float, long: PromptWork) -> RequestState | None:
        """The first of the shortest that is not parked and may share a long prompt's steps."""
        return self._short_turns.first(most_tokens, long)

    def num_to_compute(self, request: RequestState) -> int:
        """Tokens of a waiting request that neither L1 nor L2 has."""
        return self._work[request.request_id]

    def admit(self, request: RequestState) -> None:
        """Take out a request that runs now: under `routing_key` others of its key go first."""
        self._take(request)
        self._running_keys.add(request.submit.routing_key)

    def stop_running(self, request: RequestState) -> None:
        """Note that a request runs no more, and so brings no page to others."""
        self.lead(request.request_id, None)
        self._running_keys.remove(request.submit.routing_key)
        self.coming.discard(request)

    def note_computed(self, request: RequestState) -> None:
        """Note that a running request has its first token: no page of its prompt is to come."""
        self.coming.discard(request)

    def take_grown(self) -> RequestState | None:
        """Take a request whose place is to be chosen anew, because its match has grown."""
        return self._grown.popitem(last=False)[1] if self._grown else None

    def park(
        self, request: RequestState, *, lacks: PageKey | None, leader: RequestId | None = None
    ) -> None:
        """Look at others until `pages_came` with `lacks`, `leader_stopped`, or `wake`."""
        self._take_turn(request)
        self._lack(request, lacks)
        if leader is not None:
            self._leaders[request.request_id] = leader
            self._followers.setdefault(leader, {})[request.request_id] = request

    def wake(self, request: RequestState) -> None:
        """Something has changed for this request: it has its turn again, if it waits here."""
        waits = self.requests.get(request.request_id) is request
        if waits and request.request_id not in self._turns:
            self._came.pop(request.request_id, None)
            self._unpark(request)
            self._enter(request)

    def pages_came(self, keys: Iterable[bytes]) -> None:
        """Note that L1 or L2 has pages, by key or short key, that waiting requests may lack.

        Thousands may share a page: `wake_some` gives them their turn again.
        """
        if not self._lacking:
            return
        shorts = [key[:MIRROR_KEY_BYTES] for key in keys]
        for came in [self._lacking.pop(short) for short in shorts if short in self._lacking]:
            for name in came:
                del self._lacks[name]
            if goes_by_match(self._settings.policy):
                self._grown.update(came)
            self._came.update(came)

    def wake_some(self) -> bool:
        """Give some of those in `_came` their turn again; True: others are left."""
        for name in list(itertools.islice(self._came, _PIECE)):
            self.wake(self._came.pop(name))
        return bool(self._came)

    def lead(self, leader: RequestId, key: PageKey | None) -> None:
        """Note that a request or promotion brings this page next, unless another one does.

        None: it brings no page that others may wait for.
        """
        former = self._led.pop(leader, None)
        if former is not None:
            del self._leader_of[former]

        if key is None or key in self._leader_of:
            # Followers need not wait for this leader: another brings the page, or nobody does.
            self.leader_stopped(leader)
        else:
            self._leader_of[key] = leader
            self._led[leader] = key

    @property
    def has_leaders(self) -> bool:
        """Whether some page is being computed or loaded for others."""
        return bool(self._leader_of)

    def leader_of(self, key: PageKey) -> RequestId | None:
        """The request that computes or loads this page, so that no other need do it."""
        return self._leader_of.get(key)

    def leader_stopped(self, leader: RequestId) -> None:
        """Note that a request brings no more pages, or others: its followers look again.

        Thousands may follow it: `wake_some` gives them their turn again.
        """
        followers = self._followers.pop(leader, {})
        for name in followers:
            del self._leaders[name]
        self._came.update(followers)

    def check(self, running: Iterable[RequestState]) -> None:
        """Raise AccountingError unless the counts and all places and turns agree."""
        running = list(running)
        self._running_keys.check(request.submit.routing_key for request in running)
        if self._settings.prefix_caching:
            self.coming.check(self.requests.values(), running)
        figures = f"{len(self.requests)} requests wait, {len(self._turns)} have their turn"

        if self.num_tokens != sum(self._new.values()) or self._new.keys() != self.requests.keys():
            raise AccountingError(
                f"{self.num_tokens} tokens of {len(self._new)} requests are counted: {figures}"
            )

        if (
            self._keys.keys() != self.requests.keys()
            or self._work.keys() != self.requests.keys()
            or self._num_cached.keys() != self.requests.keys()
            or not self._grown.keys() <= self.requests.keys()
        ):
            raise AccountingError(f"places are kept of requests that do not wait: {figures}")
        if any(self.requests.get(request.request_id) is not request for request in self._turns):
            raise AccountingError(f"a request that does not wait here has a turn: {figures}")
        if {one.request_id for one in self._turns} != {one.request_id for one in self._short_turns}:
            raise AccountingError(f"others have their turn by size: {figures}")

        lacking = {name: key for key, requests in self._lacking.items() for name in requests}
        following = {
            name: leader for leader, requests in self._followers.items() for name in requests
        }
        if (
            lacking != self._lacks
            or following != self._leaders
            or not lacking.keys() | self._came.keys() <= self.requests.keys()
        ):
            raise AccountingError(
                f"{len(lacking)} requests lack pages, {len(following)} follow: {figures}"
            )

    def _enter(self, request: RequestState) -> None:
        name = request.request_id
        match self._turns:
            case ResponseTurns():
                self._turns.put(request, self._keys[name], self._work[name])
            case PrefixTurns():
                self._turns.put(request, self._keys[name], self._prefix_keys(request))
            case _:
                self._turns.put(request, self._keys[name])
        self._short_turns.put(request, self._keys[name], self._work[name])

    def _prefix_keys(self, request: RequestState) -> Sequence[PageKey]:
        """The keys by which a request is known to begin as others do; none if it shares nothing."""
        may_share = self._settings.prefix_caching and not request.must_score
        return stop_keys(request.chain) if may_share else ()

    def _take_turn(self, request: RequestState) -> None:
        self._turns.discard(request.request_id)
        self._short_turns.discard(request.request_id)

    def _lack(self, request: RequestState, key: PageKey | None) -> None:
        former = self._lacks.pop(request.request_id, None)
        if former is not None:
            _take_out(self._lacking, former, request.request_id)
        if key is not None:
            short = self._lacks[request.request_id] = key[:MIRROR_KEY_BYTES]
            self._lacking.setdefault(short, {})[request.request_id] = request

    def _unpark(self, request: RequestState) -> None:
        leader = self._leaders.pop(request.request_id, None)
        if leader is not None:
            _take_out(self._followers, leader, request.request_id)


def _turns_of(policy: SchedulingPolicy, running: RunningKeys) -> _Turns:
    match policy:
        case SchedulingPolicy.ROUTING_KEY:
            return RoutingTurns(running)
        case SchedulingPolicy.HRRN:
            return ResponseTurns()
        case SchedulingPolicy.DFS_WEIGHT:
            return PrefixTurns()
        case SchedulingPolicy.FCFS | SchedulingPolicy.LPM | SchedulingPolicy.SHORTEST_PREFILL:
            return RequestOrder()
        case _:
            assert_never(policy)


def _take_out(index: dict[_Key, dict[RequestId, RequestState]], key: _Key, name: RequestId) -> None:
    entries = index[key]
    del entries[name]
    if not entries:
        del index[key]
