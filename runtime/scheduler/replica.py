"""What the Scheduler's decisions share: requests, lanes, the view of L2, rates, the outbox."""

import itertools
from collections.abc import Iterable, Sequence

from raydix.ids import ClientId, ConnectionId, LeaseId, LookupId, RequestId
from raydix.runtime.cache.radix_tree import Match
from raydix.runtime.cache.recent_prefixes import RecentPrefixes
from raydix.runtime.messages.arrays import Int32Array, empty
from raydix.runtime.messages.client import FailureKind, FinishReason, RequestDelta, RequestFailure
from raydix.runtime.messages.host import (
    CancelLookup,
    LeasePages,
    Lookup,
    PageSource,
    ReleaseLeases,
    ToHost,
    Urgency,
)
from raydix.runtime.messages.plan import PromptLogprobs, TokenLogprobs
from raydix.runtime.scheduler.cached_prefix import CachedPrefix, ends_in_l1, find_prefix
from raydix.runtime.scheduler.counters import Counters, Timing, Timings
from raydix.runtime.scheduler.events import Effect, SendClient, SendHost
from raydix.runtime.scheduler.explanations import Explanations
from raydix.runtime.scheduler.host_view import HostView, LeaseWanted
from raydix.runtime.scheduler.lane import Lane
from raydix.runtime.scheduler.lookups import Asker, Lookups
from raydix.runtime.scheduler.orphans import Orphans
from raydix.runtime.scheduler.pieces import Pieces
from raydix.runtime.scheduler.prefetch_hint import PrefetchHint
from raydix.runtime.scheduler.publishing import keep_window, note_end, publish_rest
from raydix.runtime.scheduler.rates import decode_rate, load_rate, prefill_rate
from raydix.runtime.scheduler.request import RequestState
from raydix.runtime.scheduler.sessions import Sessions
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.step_group import StepGroup
from raydix.runtime.scheduler.timers import Timers
from raydix.runtime.scheduler.transfers import Promotion
from raydix.runtime.scheduler.trials import Trials
from raydix.runtime.scheduler.use_counts import UseCounts
from raydix.runtime.scheduler.waiting import Place

_END_WEIGHT = 8
"""The weight of ending one request that decodes: some 0.1 ms, as its last pages are published."""
_NUM_RECENT_PAGES = 1 << 20
"""The number of prompt pages that are remembered: 8 MiB, none of it used without windows."""


class Replica:
    """Owns: which requests and hints exist, how each ends, and what is to be sent.

    Lanes own what their requests hold.
    """

    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings
        self.counters = Counters()
        """What is counted of the whole engine; each lane counts what concerns its ranks."""
        self.timings = Timings()
        self.host = HostView(settings.num_groups)
        assert settings.num_lanes % settings.lanes_per_group == 0, "every lane is in a step group"
        self.step_groups = [
            StepGroup(index, settings)
            for index in range(settings.num_lanes // settings.lanes_per_group)
        ]
        uses = UseCounts(settings.num_lanes * max(settings.num_pages))
        self.lanes = [
            Lane(index, settings, group, self.host, uses)
            for group in self.step_groups
            for index in group.lanes
        ]

        self.is_closing = False
        """Whether the engine is about to stop, and takes no new requests."""
        self.requests: dict[RequestId, RequestState] = {}
        self.unplaced: dict[RequestId, RequestState] = {}
        """Requests without a lane, in the order in which they get one; new ones wait for page keys.
        """
        self.orphans = Orphans()
        self.hints: dict[RequestId, PrefetchHint] = {}
        """Prefetch hints that were not answered yet, oldest first."""

        self.lookups = Lookups()
        self.timers = Timers()
        self.pieces = Pieces()
        self.explanations = Explanations()

        self.prefill_rate = prefill_rate(settings)
        self.decode_rate = decode_rate(settings)
        self.load_rate = load_rate(settings)
        self.trials = Trials()
        self.sessions = Sessions()
        self.prefixes = RecentPrefixes(_NUM_RECENT_PAGES)
        self._effects: list[Effect] = []
        self._ids = itertools.count(1)

    def group_of_rank(self, rank: int) -> StepGroup:
        """The step group that a rank is in."""
        return self.step_groups[rank // self.settings.ranks_per_group]

    def lane_of_rank(self, rank: int) -> Lane:
        """The lane whose L1 a rank holds."""
        return self.lanes[rank // self.settings.ranks_per_lane]

    def lanes_of(self, group: StepGroup) -> list[Lane]:
        """The lanes of a step group, in order."""
        return self.lanes[group.lanes.start : group.lanes.stop]

    def bytes_of(self, num_pages: Iterable[int]) -> int:
        """The bytes that one rank loads for so many pages of each KV group."""
        pairs = zip(self.settings.loaded_bytes, num_pages, strict=True)
        return sum(num_bytes * num for num_bytes, num in pairs)

    def next_serial(self) -> int:
        """A number that no other request has had."""
        return next(self._ids)

    def emit(self, effect: Effect) -> None:
        """Add an effect, for the shell to carry out after those before."""
        self._effects.append(effect)

    def take_effects(self) -> list[Effect]:
        """The effects of the event that was handled."""
        effects, self._effects = self._effects, []
        return effects

    def first_of_samples(self, request: RequestState) -> RequestState | None:
        """The living request whose prompt this one is a further sample of, if it is on a lane."""
        name = request.submit.sample_of
        # A suspect runs on the lane of suspects, wherever its prompt is cached.
        first = None if name is None or request.is_suspect else self.requests.get(name)
        if first is None or first.client_id != request.client_id or name in self.unplaced:
            return None
        return None if first is request else first

    def is_in_use(self, name: RequestId) -> bool:
        """Whether a request or hint of this name is not answered or ended yet."""
        return name in self.hints or (name in self.requests and name not in self.orphans)

    def close(self) -> None:
        """Take no new requests from now on."""
        self.is_closing = True

    def add_request(self, request: RequestState) -> None:
        """Add a new request; its page keys are hashed before it is queued on a lane."""
        self._drop_orphan(request.request_id)
        self.requests[request.request_id] = request
        self.unplaced[request.request_id] = request

    def displace(self, places: Iterable[Place]) -> None:
        """Move requests that waited on lanes whose ranks are lost to other lanes, in order."""
        for _, request in sorted(places):
            request.lose_lane()
            self.unplaced[request.request_id] = request

    def take_unplaced(self, request: RequestState) -> None:
        """Take out a request that gets a lane; a displaced one is looked up once more."""
        del self.unplaced[request.request_id]
        self.cancel_lookup(request)
        self.lookups.end_claim(request)

    def add_hint(self, hint: PrefetchHint) -> None:
        """Add a new hint."""
        self.hints[hint.request_id] = hint

    def remove_hint(self, hint: PrefetchHint) -> None:
        """Remove a hint that was answered, or whose client is gone."""
        del self.hints[hint.request_id]

    def wake_at(self, time_s: float, request: RequestState | None = None) -> None:
        """Look at a request, or at all that is late, at this time even if no event comes before."""
        self.timers.add(time_s, None if request is None else (request.request_id, request.serial))

    def tell_host(self, message: ToHost) -> None:
        """Queue a message to HostMemory, if it is attached."""
        if self.host.connection is not None:
            self.emit(SendHost(connection=self.host.connection, message=message))

    def ask_lease(
        self,
        request: RequestState,
        starts: Sequence[int],
        stop: int,
        promotion: Promotion | None = None,
    ) -> LeaseId:
        """Ask for host pages, of each KV group from its start up to `stop`.

        They are for a request's promotion, or for its run.
        """
        lease_id = LeaseId(next(self._ids))
        wanted = LeaseWanted(request=request, run=request.run, promotion=promotion)
        self.host.want_lease(lease_id, wanted)
        if promotion is not None:
            promotion.wait_for(lease_id)
        first = min(starts)
        keys = request.chain.keys(stop, first)
        counted = tuple([start - first for start in starts])
        self.tell_host(LeasePages(lease_id=lease_id, keys=keys, starts=counted))
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
        queued_s = None
        sources = request.report_sources(has_ended=finished is not None)
        if sources is not None:
            self.counters.count_sources(sources)
            if request.admitted_s is not None:
                queued_s = request.admitted_s - request.arrival_s
                self.timings.observe(Timing.QUEUE, queued_s)

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
        self.emit(SendClient(client_id=request.client_id, delta=delta))

    def send_prompt_logprobs(self, request: RequestState, logprobs: PromptLogprobs) -> None:
        """Tell the client of more of its prompt, before any of its output."""
        delta = RequestDelta(
            asking=request.submit.asking,
            request_id=request.request_id,
            prompt_logprobs=(logprobs,),
        )
        self.emit(SendClient(client_id=request.client_id, delta=delta))

    def finish(self, request: RequestState, reason: FinishReason) -> None:
        """End a request well: its pages stay cached. The caller sends the client the last news."""
        self.counters.count_end(reason)
        self._end(request)

    def fail(self, request: RequestState, kind: FailureKind, message: str) -> None:
        """End a request badly and tell its client, unless that is gone."""
        if request.request_id in self.orphans:
            self.drop(request)
            return
        self.counters.count_failure(kind)
        self.send_tokens(request, empty(), (), None, RequestFailure(kind=kind, message=message))
        self._end(request)

    def drop(self, request: RequestState) -> None:
        """End a request whose client is gone."""
        self.counters.count_end(FinishReason.ABORT)
        self._end(request)

    def orphan(self, client_id: ClientId) -> None:
        """Let the requests of a client that is gone end piece by piece."""
        running, waiting = self.orphans.add_all(self.requests.values(), client_id)
        # Those that hold something first. Of the others the newest: what one of them leaves room
        # for is not looked up for the next in vain.
        self.pieces.add(self._drop_orphan, running, weight=_END_WEIGHT)
        self.pieces.add(self._drop_orphan, reversed(waiting))

    def _drop_orphan(self, name: RequestId) -> None:
        if name in self.orphans:
            self.drop(self.requests[name])

    def _end(self, request: RequestState) -> None:
        lane = self.lanes[request.lane]
        self.cancel_lookup(request)
        self.lookups.end_claim(request)
        if request.request_id in lane.running:
            publish_rest(lane, request)
            keep_window(lane, request, request.num_held_pages)
            note_end(lane, request)
            lane.release(request)
        else:
            self.unplaced.pop(request.request_id, None)
            lane.promotions.end(request.request_id)
            lane.waiting.discard(request)
        request.end()
        del self.requests[request.request_id]
        self.orphans.discard(request.request_id)
        self.timers.forget((request.request_id, request.serial))
        self.explanations.add(request)

    @property
    def num_waiting(self) -> int:
        """Requests that are not admitted."""
        num_placed = sum(len(lane.waiting) for lane in self.lanes)
        return len(self.unplaced) + num_placed - self.orphans.num_waiting

    def requeue(self, request: RequestState) -> None:
        """Let an admitted request give back what it holds and wait again, with its known tokens.

        Where its prompt came from stays as it was at its first admission.
        """
        lane = self.lanes[request.lane]
        self.lookups.end_claim(request)
        publish_rest(lane, request)
        num_held_pages = request.num_held_pages
        keep_window(lane, request, num_held_pages)
        lane.release(request)
        request.stop_running()
        lane.waiting.add(request, num_cached_pages=num_held_pages, lacks=None)
        self.orphans.stopped_running(request.request_id)

    def find_prefix(
        self, request: RequestState, lane: Lane, most_pages: int | None = None
    ) -> CachedPrefix:
        """What L1 and L2 hold of a request, or of its first pages, as far as is known."""
        host = self.host
        is_useful = host.is_usable and host.num_keys > 0 and self.settings.prefix_caching
        max_pages = request.max_cached_tokens // self.settings.page_size
        if most_pages is not None:
            max_pages = min(max_pages, most_pages)
        return find_prefix(
            self.settings,
            host if is_useful else None,
            lane.match(request.chain),
            request.chain.keys(max_pages) if is_useful else b"",
            max_pages=max_pages,
        )

    def want_lookup(self, request: RequestState, found: CachedPrefix) -> None:
        """Have a waiting request looked up: at once, or in its turn if L3 may have some of it."""
        request.renew_prefetch()
        num_full, num_groups = request.chain.num_prompt_pages, self.settings.num_groups
        if request.must_score:
            request.prefetch.rule_out(PageSource.PROMPT_LOGPROBS, num_full, num_groups=num_groups)
            return
        if not self.settings.prefix_caching or not num_full:
            return
        if not self.host.is_usable:
            if self.settings.has_host_memory:
                request.prefetch.rule_out(PageSource.IO_ERROR, num_full, num_groups=num_groups)
            return

        ends = ends_in_l1(self.settings, found.match, num_full)
        request.prefetch.make_due(ends, num_full)
        lacking = range(found.num_known_pages, num_full)
        is_asked = len(lacking) * self.settings.page_size >= self.host.min_l3_tokens
        if lacking and is_asked and self.host.has_storage is not False:
            place = self.lanes[request.lane].waiting.key(request)
            self.lookups.enqueue(request, request.chain.short_keys(lacking), place)
        else:
            self.send_lookup(request, found.match, Urgency.REQUEST)

    def send_lookup(self, asker: Asker, match: Match, urgency: Urgency) -> None:
        """Ask HostMemory for the chain of a request or hint, of which L1 holds `match`."""
        num_full = asker.chain.num_prompt_pages
        num_l1_pages = ends_in_l1(self.settings, match, num_full)
        lookup_id, earlier_id = LookupId(next(self._ids)), asker.prefetch.lookup_id
        asker.prefetch.open(lookup_id, num_l1_pages, num_full)
        self.lookups.open(lookup_id, asker)
        self.host.unanswered.add(lookup_id)
        keys = asker.chain.keys(num_full)
        message = Lookup(
            lookup_id=lookup_id,
            keys=keys,
            num_l1_pages=num_l1_pages,
            num_brought_pages=asker.prefetch.count(PageSource.L3),
            urgency=urgency,
        )
        self.tell_host(message)
        if earlier_id is not None:
            # What that one brought is kept for this one from now on.
            self.tell_host(CancelLookup(lookup_id=earlier_id))

    def send_due_lookups(self) -> None:
        """Look up those whose turn it is, while L2 has room for what L3 may bring."""
        while self.host.is_usable and (request := self.lookups.next_to_send()) is not None:
            match = self.lanes[request.lane].match(request.chain)
            self.send_lookup(request, match, Urgency.REQUEST)

    def forget_lookups(self) -> Lookups:
        """HostMemory is gone, and with it every lookup; returns what there was."""
        former, self.lookups = self.lookups, Lookups()
        return former

    def cancel_lookup(self, asker: Asker) -> None:
        """Cancel a lookup for which nobody waits; pages that it brought are kept no longer.

        What a request claims of L2 stays claimed.
        """
        lookup_id = asker.prefetch.lookup_id
        if lookup_id is not None:
            self.lookups.close(lookup_id)
            self.host.unanswered.discard(lookup_id)
            if asker.prefetch.holds_staged_pages:
                self.tell_host(CancelLookup(lookup_id=lookup_id))
        self.lookups.withdraw(asker)
        asker.prefetch.close()
