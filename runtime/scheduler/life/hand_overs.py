"""Requests that go on at another engine, once the node's L2 has what was computed for them here.

Such a request has ended: it holds no page, no slot and no lock, and its pages are backed up as any
others. All that is left is whom to tell, and when.
"""

import math

from raydix.ids import ClientId, PageKey
from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.cache.page_pools import pages_between
from raydix.runtime.messages.client import AbortRequest, FinishReason, RequestDelta, StopRequest
from raydix.runtime.scheduler.events import SendClient
from raydix.runtime.scheduler.life.leaving import HandOver
from raydix.runtime.scheduler.life.requests import Requests
from raydix.runtime.scheduler.outbox import Outbox
from raydix.runtime.scheduler.pages.backups import pages_with_keys
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.rates import Rates
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.sources.kv_source import KvSource
from raydix.runtime.scheduler.timers import Timers

_LEAST_WAIT_S = 0.1
"""Seconds for which pages are waited for in any case: a copy takes a turn of three actors."""


class HandOvers:
    """Tells clients when what they have begun here can go on elsewhere."""

    def __init__(
        self,
        settings: SchedulerSettings,
        requests: Requests,
        source: KvSource,
        rates: Rates,
        timers: Timers,
        outbox: Outbox,
    ) -> None:
        self._settings = settings
        self._requests, self._view, self._rates = requests, source.view, rates
        self._timers, self._outbox = timers, outbox

    def begin(self, lane: Lane, request: RequestState, now_s: float) -> None:
        """Wait until L2 has the pages of a request that has just ended, or as long as that pays."""
        # The last token, which was sampled here, has its keys and values computed there.
        num_pages = (request.num_tokens - 1) // self._settings.page_size
        keys = split_keys(request.chain.keys(num_pages))
        self._bring_back(lane, request, keys)
        wanted = lane.backups.wanted_of(keys)
        num_bringing = sum(not self._view.keys.is_told(*page) for page in wanted)
        num_tokens = min(num_bringing, num_pages) * self._settings.page_size
        wait_s = max(_LEAST_WAIT_S, self._rates.prefill.predict_s(num_tokens, now_s))
        # Whoever goes on says that the deadline has passed.
        deadline_s = math.inf if request.deadline_s is None else request.deadline_s
        until_s = min(now_s + wait_s, deadline_s)

        hand_over = HandOver(
            request_id=request.request_id,
            client_id=request.client_id,
            asking=request.submit.asking,
            until_s=until_s,
            lacking=wanted[::-1],
        )
        self._requests.add_leaving(hand_over)
        self._timers.add(until_s)

    def _bring_back(self, lane: Lane, request: RequestState, keys: list[PageKey]) -> None:
        """Have copied what L1 has of a chain and L2 lacks: it may have lost a head that many share,
        which nobody computes anew, and without which all behind it is of no use.
        """
        match = lane.match(request.chain)
        found = pages_between(match.page_ids, 0, min(len(keys), match.num_pages))
        pages = list(pages_with_keys(keys[: match.num_pages], found))
        lane.backups.add(pages, range(self._settings.num_groups))

    def tell(self, now_s: float) -> None:
        """Tell those of whom L2 has all pages, or which have waited for long enough."""
        for each in list(self._requests.leaving.values()):
            if (
                now_s >= each.until_s
                or not self._view.is_usable
                or each.is_complete(self._view.keys)
            ):
                self._answer(each, FinishReason.HANDED_OVER)

    def stop(self, client_id: ClientId, message: AbortRequest | StopRequest) -> None:
        """End a hand-over as its client asks, unless that means an earlier request of this name."""
        each = self._requests.leaving.get(message.request_id)
        if each is not None and (each.client_id, each.asking) == (client_id, message.asking):
            is_stop = isinstance(message, StopRequest)
            self._answer(each, FinishReason.STOP if is_stop else FinishReason.ABORT)

    def drop_all(self, client_id: ClientId) -> None:
        """A client is gone: nobody is to be told."""
        for each in list(self._requests.leaving.values()):
            if each.client_id == client_id:
                self._requests.remove_leaving(each)

    def end_all(self) -> None:
        """The engine stops now: whoever goes on elsewhere does so with what L2 has."""
        for each in list(self._requests.leaving.values()):
            self._answer(each, FinishReason.HANDED_OVER)

    def _answer(self, each: HandOver, reason: FinishReason) -> None:
        self._requests.remove_leaving(each)
        delta = RequestDelta(asking=each.asking, request_id=each.request_id, finished=reason)
        self._outbox.emit(SendClient(client_id=each.client_id, delta=delta))
