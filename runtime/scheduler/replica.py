"""Everything that the Scheduler's decisions share: requests, lanes, the view of L2, learned rates, and the outbox."""

import heapq
import itertools
from collections import Counter, OrderedDict, defaultdict

from raydix.ids import LeaseId, RequestId, TransferId
from raydix.runtime.messages.arrays import Int32Array, empty, int32_array
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
from raydix.runtime.scheduler.predictors import RatePredictor
from raydix.runtime.scheduler.request import Phase, PrefetchState, RequestState
from raydix.runtime.scheduler.settings import SchedulerSettings

_NUM_EXPLAINED = 1024


class Replica:
    """Owns: which requests exist, and how each ends. Lanes own what their requests hold."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings
        self.lanes = [Lane(index, settings) for index in range(settings.num_lanes)]
        self.requests: dict[RequestId, RequestState] = {}
        self.hashing: dict[RequestId, RequestState] = {}
        """New requests whose page keys are not all known yet, oldest first; they are on no lane."""
        self.hints: dict[RequestId, RequestState] = {}
        """Prefetches without a request, oldest first; those that are looked up have a `prefetch` that is not final."""
        self.host = HostView()
        self.prefill_rate = RatePredictor(settings.start_prefill_tokens_per_s)
        self.load_rate = RatePredictor(settings.start_load_bytes_per_s)
        self.counters: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """Durations added up, by what they are of."""
        self.explained: OrderedDict[RequestId, dict[str, object]] = OrderedDict()
        self.sessions: OrderedDict[str, int] = OrderedDict()
        """Session id to the lane that served it last."""
        self.effects: list[Effect] = []
        self._ids = itertools.count(1)
        self._wakeups: list[float] = []

    def next_transfer_id(self) -> TransferId:
        """A new id for a load or backup."""
        return TransferId(next(self._ids))

    def next_lease_id(self) -> LeaseId:
        """A new id for a lease."""
        return LeaseId(next(self._ids))

    def wake_at(self, time_s: float) -> None:
        """Something is to be decided at this time, even if no event comes before."""
        heapq.heappush(self._wakeups, time_s)

    def next_wakeup_s(self) -> float | None:
        """The earliest time that `wake_at` was told."""
        return self._wakeups[0] if self._wakeups else None

    def drop_wakeups(self, now_s: float) -> bool:
        """Forget the times that have come; True if there were any."""
        is_due = bool(self._wakeups) and self._wakeups[0] <= now_s
        while self._wakeups and self._wakeups[0] <= now_s:
            heapq.heappop(self._wakeups)
        return is_due

    def tell_host(self, message: ToHost) -> None:
        """Queue a message to HostMemory."""
        self.effects.append(SendHost(message=message))

    def ask_lease(self, request: RequestState, start: int, stop: int, now_s: float) -> LeaseId:
        """Ask HostMemory for the host pages of a request's pages [start, stop)."""
        lease_id = self.next_lease_id()
        keys = request.keys(stop, self.settings.page_size)[start * KEY_BYTES :]
        self.host.leases[lease_id] = LeaseWanted(request_id=request.request_id, run=request.run, asked_s=now_s)
        self.tell_host(LeasePages(lease_id=lease_id, keys=keys))
        self.wake_at(now_s + self.settings.lookup_deadline_s)
        return lease_id

    def release_lease(self, lease_id: LeaseId, host_incarnation: int) -> None:
        """Give a lease back to the HostMemory that granted it, if that one is still there."""
        if host_incarnation == self.host.incarnation:
            self.tell_host(ReleaseLeases(lease_ids=int32_array((lease_id,))))

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
            queued_s = None if request.admitted_s is None else request.admitted_s - request.arrival_s
        delta = RequestDelta(
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
        """End a request well. Its computed pages stay cached; its last delta was or is sent by the caller."""
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
        if request.request_id in lane.running:
            lane.release(request, Phase.ENDED)
        else:
            self.hashing.pop(request.request_id, None)
            lane.end_promotion(request.request_id)
            lane.waiting.pop(request.request_id, None)
            request.end_run(Phase.ENDED)
        del self.requests[request.request_id]
        self._explain(request)

    @property
    def num_waiting(self) -> int:
        """Requests that are not admitted."""
        return len(self.hashing) + sum(len(lane.waiting) for lane in self.lanes)

    def requeue(self, request: RequestState) -> None:
        """Take an admitted request off its lane and let it wait again, with all tokens known so far."""
        lane = self.lanes[request.lane]
        lane.release(request, Phase.WAITING)
        lane.waiting[request.request_id] = request
        if not request.is_reported:
            request.sources = None

    def look_up(self, request: RequestState, num_l1_pages: int, urgency: Urgency, now_s: float) -> None:
        """Ask HostMemory for a prompt's chain, of which L1 holds `num_l1_pages`, if there is a HostMemory to ask."""
        size = self.settings.page_size
        num_full = request.num_prompt // size
        if not self.host.is_usable or not self.settings.prefix_caching or not num_full:
            return
        num_l1_pages = min(num_l1_pages, num_full)
        sources = bytes([PageSource.L1]) * num_l1_pages + bytes([PageSource.PENDING]) * (num_full - num_l1_pages)
        request.prefetch = PrefetchState(sources=sources, is_final=False, asked_s=now_s)
        keys = request.keys(num_full, size)
        self.host.note_lookup(request.request_id)
        self.tell_host(Lookup(request_id=request.request_id, keys=keys, num_l1_pages=num_l1_pages, urgency=urgency))
        self.wake_at(now_s + self.settings.lookup_deadline_s)

    def cancel_lookup(self, request: RequestState) -> None:
        """The request no longer waits for pages from L3."""
        if not request.prefetch.is_final:
            request.prefetch.is_final = True
            request.prefetch.asked_s = None
            if self.host.incarnation is not None:
                self.tell_host(CancelLookup(request_id=request.request_id))

    def _explain(self, request: RequestState) -> None:
        self.explained[request.request_id] = {
            "prompt_tokens": request.num_prompt,
            "output_tokens": request.num_output,
            "cached_tokens_by_source": request.sources or {},
            "ranges": [
                {"start": start, "end": end, "source": source.label} for start, end, source in request.source_ranges
            ],
        }
        while len(self.explained) > _NUM_EXPLAINED:
            self.explained.popitem(last=False)
