"""Everything that the Scheduler's decisions share: requests, lanes, the view of L2, learned rates,
and the outbox.
"""

import itertools
from collections import Counter, OrderedDict, defaultdict

from raydix.ids import ConnectionId, LeaseId, LookupId, RequestId
from raydix.runtime.messages.arrays import Int32Array, empty
from raydix.runtime.messages.client import FailureKind, FinishReason, RequestDelta, RequestFailure
from raydix.runtime.messages.host import (
    KEY_BYTES,
    CancelLookup,
    LeasePages,
    Lookup,
    PageSource,
    ReleaseLeases,
    ToHost,
    Urgency,
)
from raydix.runtime.messages.plan import TokenLogprobs
from raydix.runtime.scheduler.events import Effect, SendClient, SendHost
from raydix.runtime.scheduler.host_view import HostView, LeaseWanted
from raydix.runtime.scheduler.lane import Lane
from raydix.runtime.scheduler.lookups import Lookups
from raydix.runtime.scheduler.predictors import TimePredictor
from raydix.runtime.scheduler.prefetch import PrefetchState
from raydix.runtime.scheduler.request import Phase, RequestState
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.timers import Timers
from raydix.runtime.scheduler.transfers import Promotion

_NUM_EXPLAINED = 1024
_FULL_LOAD_S = 0.002
"""A load that should take so long teaches the load rate in full; a shorter one teaches it less."""


class Replica:
    """Owns: which requests exist, and how each ends. Lanes own what their requests hold."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings
        self.lanes = [Lane(index, settings) for index in range(settings.num_lanes)]
        self.requests: dict[RequestId, RequestState] = {}
        self.hashing: dict[RequestId, RequestState] = {}
        """New requests whose page keys are not all known yet, oldest first; they are on no lane."""
        self.hints: dict[RequestId, RequestState] = {}
        """Prefetches without a request, oldest first; those that are looked up have a `prefetch`
        that is pending.
        """
        self.host = HostView()
        self.lookups = Lookups()
        self.timers = Timers()
        self.prefill_rate = TimePredictor(
            settings.start_prefill_tokens_per_s, full_amount=settings.prefill_budget_tokens
        )
        self.load_rate = TimePredictor(
            settings.start_load_bytes_per_s,
            full_amount=settings.start_load_bytes_per_s * _FULL_LOAD_S,
        )
        self.counters: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """Durations added up, by what they are of."""
        self.explained: OrderedDict[RequestId, dict[str, object]] = OrderedDict()
        self.sessions: OrderedDict[str, int] = OrderedDict()
        """Session id to the lane that served it last."""
        self.effects: list[Effect] = []
        self._ids = itertools.count(1)

    def next_serial(self) -> int:
        """A number that no other request or hint has had."""
        return next(self._ids)

    def wake_at(self, time_s: float, request: RequestState | None = None) -> None:
        """Something is to be decided at this time, even if no event comes before: about a request,
        or in general.
        """
        self.timers.add(time_s, None if request is None else (request.request_id, request.serial))

    def tell_host(self, message: ToHost) -> None:
        """Queue a message to HostMemory, if it is attached."""
        if self.host.connection is not None:
            self.effects.append(SendHost(connection=self.host.connection, message=message))

    def ask_lease(
        self, request: RequestState, start: int, stop: int, promotion: Promotion | None = None
    ) -> LeaseId:
        """Ask HostMemory for the host pages of a request's pages [start, stop)."""
        lease_id = LeaseId(next(self._ids))
        keys = request.keys(stop, self.settings.page_size)[start * KEY_BYTES :]
        self.host.leases[lease_id] = LeaseWanted(
            request=request, run=request.run, promotion=promotion
        )
        self.host.unanswered.add(lease_id)
        self.tell_host(LeasePages(lease_id=lease_id, keys=keys, starts=(0,)))
        return lease_id

    def release_lease(self, lease_id: LeaseId, connection: ConnectionId) -> None:
        """Give a lease back over the connection that granted it, if that is still there."""
        if connection == self.host.connection:
            self.tell_host(ReleaseLeases(lease_ids=(lease_id,)))

    def send_tokens(
        self,
        request: RequestState,
        token_ids: Int32Array,
        logprobs: tuple[TokenLogprobs | None, ...],
        finished: FinishReason | None,
        failure: RequestFailure | None = None,
    ) -> None:
        """Tell the client what is new; the first time also where its prompt came from."""
        is_first = not request.is_reported and (request.sources is not None or finished is not None)
        sources = queued_s = None
        if is_first:
            request.is_reported = True
            sources = request.sources or {PageSource.CANCELLED.label: request.num_prompt}
            for source, num_tokens in sources.items():
                self.counters[f"prompt_tokens_{source}"] += num_tokens
            queued_s = (
                None if request.admitted_s is None else request.admitted_s - request.arrival_s
            )
        delta = RequestDelta(
            asking=request.submit.asking,
            request_id=request.request_id,
            token_ids=token_ids,
            logprobs=logprobs,
            cached_tokens_by_source=sources,
            queued_s=queued_s,
            finished=finished,
            failure=failure,
        )
        self.effects.append(SendClient(client_id=request.client_id, delta=delta))

    def finish(self, request: RequestState, reason: FinishReason) -> None:
        """End a request well. Its computed pages stay cached; its last delta was or is sent by the
        caller.
        """
        self.counters[f"finished_{reason.value}"] += 1
        self._end(request)

    def fail(self, request: RequestState, kind: FailureKind, message: str) -> None:
        """End a request badly and tell its client."""
        self.counters[f"failed_{kind.name.lower()}"] += 1
        self.send_tokens(request, empty(), (), None, RequestFailure(kind=kind, message=message))
        self._end(request)

    def drop(self, request: RequestState) -> None:
        """End a request whose client is gone."""
        self.counters["finished_abort"] += 1
        self._end(request)

    def _end(self, request: RequestState) -> None:
        lane = self.lanes[request.lane]
        self.cancel_lookup(request)
        self.lookups.end_claim(request)
        if request.request_id in lane.running:
            lane.release(request, Phase.ENDED)
        else:
            self.hashing.pop(request.request_id, None)
            lane.end_promotion(request.request_id)
            lane.waiting.discard(request)
            request.end_run(Phase.ENDED)
        del self.requests[request.request_id]
        self.timers.forget((request.request_id, request.serial))
        self._explain(request)

    @property
    def num_waiting(self) -> int:
        """Requests that are not admitted."""
        return len(self.hashing) + sum(len(lane.waiting) for lane in self.lanes)

    def requeue(self, request: RequestState) -> None:
        """Take an admitted request off its lane and let it wait again, with all tokens known so
        far.

        Where its prompt came from stays as it was at its first admission.
        """
        lane = self.lanes[request.lane]
        self.lookups.end_claim(request)
        num_held_pages = request.num_held_pages
        lane.release(request, Phase.WAITING)
        lane.waiting.add(request, num_cached_pages=num_held_pages, lacks=None)

    def want_lookup(self, request: RequestState, num_l1_pages: int, num_l2_pages: int) -> None:
        """Ask HostMemory for a waiting request's chain, if there is one to ask: at once, or in its
        turn if L3 may help.

        L1 holds the first pages of its prompt, L2, as far as is known, the next ones.
        """
        request.prefetch = PrefetchState()
        num_full = request.num_prompt // self.settings.page_size
        if not self.host.is_usable or not self.settings.prefix_caching or not num_full:
            return
        request.prefetch.make_due(min(num_l1_pages, num_full), num_full)
        lacking = range(num_l1_pages + num_l2_pages, num_full)
        if lacking and self.host.has_storage is not False:
            pages = request.short_keys(lacking, self.settings.page_size)
            self.lookups.enqueue(request, pages, self.lanes[request.lane].waiting.key(request))
        else:
            self.send_lookup(request, num_l1_pages, Urgency.REQUEST)

    def send_lookup(self, request: RequestState, num_l1_pages: int, urgency: Urgency) -> None:
        """Ask HostMemory for the chain of a request or hint, of which L1 holds `num_l1_pages`."""
        num_full = request.num_prompt // self.settings.page_size
        num_l1_pages = min(num_l1_pages, num_full)
        lookup_id, earlier_id = LookupId(next(self._ids)), request.prefetch.lookup_id
        request.prefetch.open(lookup_id, num_l1_pages, num_full)
        self.lookups.open(lookup_id, request)
        self.host.unanswered.add(lookup_id)
        keys = request.keys(num_full, self.settings.page_size)
        self.tell_host(
            Lookup(lookup_id=lookup_id, keys=keys, num_l1_pages=(num_l1_pages,), urgency=urgency)
        )
        if earlier_id is not None:
            # What that one brought is kept for this one from now on.
            self.tell_host(CancelLookup(lookup_id=earlier_id))

    def send_due_lookups(self) -> None:
        """Look up those whose turn it is, while L2 has room for what L3 may bring."""
        while self.host.is_usable and (request := self.lookups.next_to_send()) is not None:
            self.send_lookup(
                request, self.lanes[request.lane].match(request).num_pages, Urgency.REQUEST
            )

    def cancel_lookup(self, request: RequestState) -> None:
        """The request no longer waits for pages from L3, nor wants those kept that it has not
        leased.

        What they claim of L2 stays claimed.
        """
        lookup_id = request.prefetch.lookup_id
        if lookup_id is not None:
            self.lookups.close(lookup_id)
            self.host.unanswered.discard(lookup_id)
            if request.prefetch.holds_staged_pages:
                self.tell_host(CancelLookup(lookup_id=lookup_id))
        self.lookups.withdraw(request)
        request.prefetch.close()

    def _explain(self, request: RequestState) -> None:
        self.explained[request.request_id] = {
            "prompt_tokens": request.num_prompt,
            "output_tokens": request.num_output,
            "cached_tokens_by_source": request.sources or {},
            "ranges": [
                {"start": start, "end": end, "source": source.label}
                for start, end, source in request.source_ranges
            ],
        }
        while len(self.explained) > _NUM_EXPLAINED:
            self.explained.popitem(last=False)
