"""Prefetch hints: bring to L2 what L3 has of a prompt before a request asks for it.

Nothing is computed. A hint is a lookup without a request. It goes after the requests everywhere:
its keys are hashed when theirs are, few hints are looked up at a time, and HostMemory reads for
them when no request's pages wait.
"""

from collections.abc import Sequence
from typing import Any, assert_never

from raydix.ids import ClientId, PinId, RequestId
from raydix.runtime.cache.kv_match import match_groups
from raydix.runtime.messages.client import (
    AbortRequest,
    FailureKind,
    FinishReason,
    PrefetchPrompt,
    RequestDelta,
    RequestFailure,
    StopRequest,
    UnpinPrompt,
)
from raydix.runtime.messages.host import PageSource, Urgency
from raydix.runtime.messages.retention import EndUse, Pin, ReleasePin
from raydix.runtime.messages.tenants import tenant_of
from raydix.runtime.scheduler.counters import Count, Counters
from raydix.runtime.scheduler.events import SendClient
from raydix.runtime.scheduler.life.prefetch_states import (
    PrefetchProgress,
    PrefetchStates,
    PrefetchStatus,
)
from raydix.runtime.scheduler.life.refusals import refuse_as_closing, refuse_prefetch
from raydix.runtime.scheduler.life.requests import Requests
from raydix.runtime.scheduler.life.waiting_room import refuse_for_room
from raydix.runtime.scheduler.outbox import Outbox
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.request.chain import Chain
from raydix.runtime.scheduler.request.prefetch_hint import HintClient, PrefetchHint
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.sources.attribution import attribute, total_by_source
from raydix.runtime.scheduler.sources.kv_source import KvSource
from raydix.runtime.scheduler.timers import Timers

_MAX_HINTS = 256
"""The most hints of all clients together; each keeps its prompt in memory until it is answered."""
_MAX_LOOKED_UP = 4
"""The most hints whose lookups are open in HostMemory at a time."""


class Hints:
    """Takes in prefetch hints, looks them up and answers them."""

    def __init__(
        self,
        settings: SchedulerSettings,
        *,
        requests: Requests,
        lanes: Sequence[Lane],
        source: KvSource,
        outbox: Outbox,
        timers: Timers,
        counters: Counters,
    ) -> None:
        self._settings = settings
        self._requests = requests
        self._lanes = lanes
        self._source = source
        self._outbox = outbox
        self._timers = timers
        self._counters = counters
        self._ended = PrefetchStates()

    def told(self, name: RequestId) -> dict[str, Any] | None:
        """How far a client's prefetch has come, or what has become of it; None if not known."""
        hint, progress = self._requests.hints.get(name), self._ended.find(name)
        if hint is not None and hint.client is not None:
            progress = self._progress(hint, PrefetchStatus.PENDING)
        return None if progress is None else progress.told()

    def _progress(
        self,
        hint: PrefetchHint,
        status: PrefetchStatus,
        tokens_by_source: dict[str, int] | None = None,
    ) -> PrefetchProgress:
        return PrefetchProgress(
            status=status,
            tenant_id=tenant_of(hint.chain.cache_salt),
            num_pages=self._settings.reusable_pages(hint.chain.num_prompt),
            num_found_pages=self._num_found_pages(hint),
            tokens_by_source=tokens_by_source,
        )

    def _num_found_pages(self, hint: PrefetchHint) -> int:
        """How many leading pages could be used by now; none before the lookup."""
        by_group, layout = hint.prefetch.by_group, self._settings.layout
        if not by_group:
            return 0
        return match_groups(layout.groups, by_group, page_size=layout.page_size).num_pages

    def take(self, client_id: ClientId, message: PrefetchPrompt | UnpinPrompt) -> None:
        """Queue a hint, or have a pin released."""
        match message:
            case PrefetchPrompt():
                self.submit(client_id, message)
            case UnpinPrompt():
                self.unpin(message)
            case _:
                assert_never(message)

    def unpin(self, message: UnpinPrompt) -> None:
        """Have a pin released: the one of this name that the tenant has made."""
        self._source.tell(ReleasePin(pin_id=message.pin_id, tenant=message.tenant))

    def submit(self, client_id: ClientId, message: PrefetchPrompt) -> None:
        """Queue a hint, or refuse it with a typed failure; the client hears which."""
        failure = self._refusal(message)
        delta = RequestDelta(asking=message.asking, request_id=message.request_id, failure=failure)
        self._outbox.emit(SendClient(client_id=client_id, delta=delta))
        if failure is not None:
            return

        self._requests.add_hint(
            PrefetchHint(
                request_id=message.request_id,
                client=HintClient(client_id=client_id, asking=message.asking),
                pin=self._pin(message),
                chain=Chain(
                    message.token_ids,
                    cache_salt=message.cache_salt,
                    page_size=self._settings.page_size,
                ),
            )
        )

    def _pin(self, message: PrefetchPrompt) -> Pin | None:
        """How a prompt is to be pinned: in the tenant's own name, for as long as is allowed."""
        if message.pin_s is None:
            return None
        return Pin(
            pin_id=PinId(message.request_id),
            tenant=tenant_of(message.cache_salt),
            seconds=min(message.pin_s, self._settings.max_keep_s),
            cache_salt=message.cache_salt,
        )

    def _refusal(self, message: PrefetchPrompt) -> RequestFailure | None:
        if self._requests.is_closing:
            return refuse_as_closing()
        if self._requests.is_in_use(message.request_id):
            text = f"request_id {message.request_id!r} is in use; expected a new one."
            return RequestFailure(kind=FailureKind.BAD_REQUEST, message=text)

        refusal = refuse_prefetch(message, self._settings)
        if refusal is not None:
            return refusal

        own = [hint for hint in self._requests.hints.values() if hint.client is not None]

        def num_of_tenant() -> int:
            tenant = tenant_of(message.cache_salt)
            return sum(tenant_of(hint.chain.cache_salt) == tenant for hint in own)

        return refuse_for_room(
            len(own),
            _MAX_HINTS,
            None if message.cache_salt is None else num_of_tenant,
            what="prefetches",
            bound="the most",
        )

    def look_up_some(self, num_pages: int, now_s: float) -> None:
        """Hash at most `num_pages` keys of hints, oldest first, and look up those that are done."""
        num_looked_up = sum(hint.prefetch.is_pending for hint in self._requests.hints.values())
        for hint in list(self._requests.hints.values()):
            if num_looked_up >= _MAX_LOOKED_UP:
                return
            if hint.prefetch.is_pending:
                continue

            num_full = hint.chain.num_prompt_pages
            num_pages -= hint.chain.extend_keys(num_full, num_pages)
            if hint.chain.num_keys < num_full:
                self._timers.add(now_s)
                return

            num_looked_up += self._look_up(hint)

    def _look_up(self, hint: PrefetchHint) -> bool:
        """Look a hint up whose keys are hashed; False: it has ended, as nobody can be asked."""
        num_full = self._settings.reusable_pages(hint.chain.num_prompt)
        if not num_full or not self._source.view.is_usable:
            num_groups = self._settings.num_groups
            hint.prefetch.rule_out(PageSource.IO_ERROR, num_full, num_groups=num_groups)
            self.end(hint, PageSource.IO_ERROR)
            return False
        if hint.pin is None:
            matches = [lane.match(hint.chain) for lane in self._lanes]
        else:
            # What is to be pinned has to be in L2, wherever else it is.
            matches = [self._lanes[0].l1.tree.match(hint.chain.identity, b"")]
        longest = max(matches, key=lambda match: match.num_pages)
        self._source.send_lookup(hint, longest, Urgency.HINT)
        return True

    def end(self, hint: PrefetchHint, missed: PageSource, num_pinned_pages: int = 0) -> None:
        """Tell the client where the prompt's pages were; `missed`: why the pending did not come.

        `num_pinned_pages`: the leading pages that the client's pin holds, if it wanted one.
        """
        hint.prefetch.give_up(missed)
        if hint.rests is not None:
            self._end_return(hint, hint.rests)
            return
        ranges = attribute(
            hint.chain.num_prompt,
            hint.prefetch,
            self._settings,
            tiers=bytes([PageSource.L2]) * self._num_found_pages(hint),
            num_left_pages=0,
        )

        self._counters.count(Count.PREFETCHES)
        num_pinned = num_pinned_pages * self._settings.page_size
        sources = total_by_source(ranges)
        progress = self._progress(hint, PrefetchStatus.COMPLETED, sources)
        self._ended.add(hint.request_id, progress)
        self._answer(hint, FinishReason.PREFETCH, sources, num_pinned)

    def _end_return(self, hint: PrefetchHint, rests: EndUse) -> None:
        """Let a session rest on, unless its next request has come meanwhile."""
        self._requests.remove_hint(hint)
        assert rests.session_id is not None, "a session has a name"
        goes_on = self._requests.has_session(rests.session_id, rests.cache_salt)
        if self._source.view.is_usable and not goes_on:
            self._source.tell(rests)

    def abort(self, client_id: ClientId, message: AbortRequest | StopRequest) -> None:
        """End a hint as its client asks, unless that means an earlier one of this name."""
        hint = self._requests.hints.get(message.request_id)
        asked = HintClient(client_id=client_id, asking=message.asking)
        if hint is not None and hint.client == asked:
            self._cancel(hint)
            self._answer(hint, FinishReason.ABORT, None)

    def drop_all(self, client_id: ClientId) -> None:
        """End all hints of a client that is gone."""
        for hint in list(self._requests.hints.values()):
            if hint.client is None or hint.client.client_id != client_id:
                continue
            self._cancel(hint)
            self._requests.remove_hint(hint)

    def _cancel(self, hint: PrefetchHint) -> None:
        """Look a hint up no more; its pin, of which a report may be on its way, is released."""
        self._ended.add(hint.request_id, self._progress(hint, PrefetchStatus.CANCELLED))
        self._source.cancel_lookup(hint)
        if hint.pin is not None:
            self._source.tell(ReleasePin(pin_id=hint.pin.pin_id, tenant=hint.pin.tenant))

    def _answer(
        self,
        hint: PrefetchHint,
        reason: FinishReason,
        tokens_by_source: dict[str, int] | None,
        num_pinned_tokens: int | None = None,
    ) -> None:
        assert hint.client is not None, "a client is answered"
        self._requests.remove_hint(hint)
        delta = RequestDelta(
            asking=hint.client.asking,
            request_id=hint.request_id,
            cached_tokens_by_source=tokens_by_source,
            num_pinned_tokens=num_pinned_tokens,
            finished=reason,
        )
        self._outbox.emit(SendClient(client_id=hint.client.client_id, delta=delta))
