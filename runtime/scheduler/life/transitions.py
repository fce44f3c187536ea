"""The moves of a request, each carried out in all owners that have a part in it.

Whoever decides that a request moves calls one of these, so that no owner is forgotten.
"""

from collections.abc import Iterable, Sequence
from typing import assert_never

from raydix.ids import L3_SOURCE, LeaseId
from raydix.runtime.cache.radix_tree import Lock, Match
from raydix.runtime.messages.client import RetainSession
from raydix.runtime.messages.host import PageSource, Urgency
from raydix.runtime.scheduler.life.admission import LookUpLost, Run
from raydix.runtime.scheduler.life.arrivals import Arrivals
from raydix.runtime.scheduler.life.early_loads import EarlyLoads, name_of
from raydix.runtime.scheduler.life.explanations import Explanations
from raydix.runtime.scheduler.life.facts import Coming
from raydix.runtime.scheduler.life.load_choice import LoadChoice
from raydix.runtime.scheduler.life.publishing import (
    heal,
    keep_window,
    note_end,
    publish,
    publish_rest,
)
from raydix.runtime.scheduler.life.recorder import Recorder
from raydix.runtime.scheduler.life.requests import Requests
from raydix.runtime.scheduler.life.retention import SessionRetention
from raydix.runtime.scheduler.life.returns import SessionReturns
from raydix.runtime.scheduler.life.room import has_room, hold, start_of, take_table
from raydix.runtime.scheduler.life.trials import Trials
from raydix.runtime.scheduler.queue.waiting import Place
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.request.request_order import order_key
from raydix.runtime.scheduler.request.returning import Returning
from raydix.runtime.scheduler.request.run import RowOutcome, Start
from raydix.runtime.scheduler.request.state import State
from raydix.runtime.scheduler.request.transfers import Load, Promotion
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.sources.attribution import attribute, total_by_source
from raydix.runtime.scheduler.sources.cached_prefix import CachedPrefix
from raydix.runtime.scheduler.sources.fetch_choice import FetchChoice
from raydix.runtime.scheduler.sources.kv_source import KvSource
from raydix.runtime.scheduler.timers import Timers


class Transitions:
    """Carries out moves: what each does to the request, its lane, its source and the others."""

    def __init__(
        self,
        settings: SchedulerSettings,
        *,
        requests: Requests,
        lanes: Sequence[Lane],
        source: KvSource,
        fetch: FetchChoice,
        choice: LoadChoice,
        trials: Trials,
        timers: Timers,
    ) -> None:
        self._settings = settings
        self._requests = requests
        self._lanes = lanes
        self._source = source
        self._fetch = fetch
        self._trials = trials
        self._timers = timers
        self.explanations = Explanations()
        self.recorder = Recorder(requests, settings.page_size)
        early = EarlyLoads(
            settings,
            requests=requests,
            lanes=lanes,
            source=source,
            choice=choice,
            timers=timers,
            load=self.load_early,
        )
        returns = SessionReturns(
            settings, requests=requests, source=source, timers=timers, early=early
        )
        self.retention = SessionRetention(
            settings, requests=requests, lanes=lanes, source=source, returns=returns
        )
        self.arrivals = Arrivals(
            settings,
            requests=requests,
            lanes=lanes,
            source=source,
            choice=choice,
            timers=timers,
            num_kept=self.retention.num_kept,
            load=self.load_reserved,
        )

    def advance(self, now_s: float) -> None:
        """Note that it is so late."""
        self.recorder.advance(now_s)
        self.retention.advance(now_s)

    def hint(self, message: RetainSession) -> None:
        """Take a hint that comes without a request."""
        self.recorder.note_hint(message)
        self.retention.hint(message)

    def place(self, request: RequestState, lane: Lane, found: CachedPrefix, now_s: float) -> None:
        """Let a request wait on a lane, of which L1 there and L2 have `found`."""
        self._requests.place(request)
        # One that was displaced is looked up once more.
        self._source.forget(request)
        request.renew_prefetch()
        request.move_to(lane.index)
        lacks = lane.waiting.prompt_key(request, found.num_pages)
        lane.waiting.add(request, num_cached_pages=found.num_pages, lacks=lacks)
        origin = self._fetch.choose(request, found, now_s) or L3_SOURCE
        self._source.want_lookup(request, found, lane.waiting.key(request), origin)

    def place_anew(self, lane: Lane, request: RequestState, num_cached_pages: int) -> None:
        """Give a waiting request another place, as another part of it is cached."""
        lacks = lane.waiting.prompt_key(request, num_cached_pages)
        lane.waiting.place(request, num_cached_pages=num_cached_pages, lacks=lacks)
        self._source.move_lookup(request, lane.waiting.key(request))

    def look_up_due(self) -> None:
        """Look up those whose turn it is, while L2 has room for what L3 may bring."""
        while (request := self._source.next_to_look_up()) is not None:
            match = self._lanes[request.lane].match(request.chain)
            self._source.send_lookup(request, match, Urgency.REQUEST)

    def look_up_lost(
        self, lane: Lane, request: RequestState, lost: LookUpLost, now_s: float
    ) -> bool:
        """Look a waiting request up once more, for what L3 had brought and L2 has lost.

        False: it has no room, and waits for that first.
        """
        if not has_room(lane, request, lost.found, now_s):
            return False
        self._source.want_lost_pages(request, lane.waiting.key(request))
        self.look_up_due()
        lane.waiting.park(request, lacks=None)
        return True

    def look_up_refused(self, lane: Lane, request: RequestState) -> None:
        """Look a waiting request up once more, for the pages that L2 had no room for."""
        place = lane.waiting.key(request)
        self._source.want_lookup_again(request, (PageSource.NO_HOST_PAGE,), place)
        self.look_up_due()

    def look_up_elsewhere(self, lane: Lane, request: RequestState, now_s: float) -> None:
        """Look for what a lookup did not bring at another place, if that is worth it."""
        if not self._fetch.has_others(request):
            return
        found = self._source.find_prefix(request, lane.match(request.chain))
        origin = self._fetch.choose(request, found, now_s)
        if origin is not None:
            place = lane.waiting.key(request)
            self._source.want_lookup_elsewhere(request, found, place, origin)

    def promote(self, lane: Lane, request: RequestState, lock: Lock, num_pages: int) -> bool:
        """Load ahead for a waiting request what follows `lock` in L2, if there is room for it.

        True: the promotion has taken over `lock`.
        """
        promotion = lane.promotions.start(request, lock, num_pages)
        if promotion is None:
            return False
        self._ask_for_part(promotion)
        return True

    def load_early(
        self, lane: Lane, session: Returning, match: Match, num_pages: int, now_s: float
    ) -> bool:
        """Load what L2 has of a session that is about to go on; False: there is no room."""
        start = match.num_pages
        lock = lane.l1.lock(match, start, now_s=now_s)
        name = name_of(session.rests.user)
        promotion = lane.promotions.start_return(name, session, lane.index, lock, num_pages)
        if promotion is None:
            lane.l1.withdraw(lock)
            return False
        self._ask_for_part(promotion)
        return True

    def load_reserved(self, lane: Lane, promotion: Promotion, num_l2_pages: int) -> None:
        """Load what L2 has by now of a request that another engine begins, if that is enough."""
        if lane.promotions.begin_part(promotion, num_l2_pages):
            self._ask_for_part(promotion)

    def _ask_for_part(self, promotion: Promotion) -> None:
        start = promotion.lock.num_pages
        stop = start + promotion.num_part_pages
        starts = [start if reach is None else stop for reach in self._settings.reaches]
        promotion.wait_for(self._source.ask_lease(promotion, starts, stop))

    def publish_promoted(self, lane: Lane, promotion: Promotion, now_s: float) -> None:
        """Publish what has been loaded ahead, for a request that waits or what is to come."""
        lane.promotions.publish(promotion, now_s)
        if promotion.returns is not None:
            self.retention.end_return(lane, promotion, promotion.returns)
        elif promotion.is_for_waiting_request:
            lane.waiting.wake(self._requests.living[promotion.request_id])

    def await_grammar(self, lane: Lane, request: RequestState) -> None:
        """Let a waiting request wait for its grammar; others have their turn."""
        # It may be looked at again before, as what else it had waited for has come.
        if request.state is not State.COMPILING:
            request.move(State.COMPILING)
        lane.waiting.park(request, lacks=None)

    def take_up_grammar(self, request: RequestState) -> None:
        """Give a request its turn again whose grammar has come, if it waits for that alone."""
        if request.state is State.COMPILING:
            request.move(State.WAITING)
            self._lanes[request.lane].waiting.wake(request)

    def admit(self, lane: Lane, request: RequestState, run: Run, now_s: float) -> bool:
        """Give a waiting request a slot: it runs, or waits for a lease on what it loads.

        False: it has no room, and waits on.
        """
        found = run.found
        held = hold(lane, request, found, now_s)
        if held is None:
            return False
        if run.coming is not None:
            self._wait_no_longer(request, run.coming, now_s)
        start = start_of(self._settings, request, found)
        table = take_table(lane, held, found, start)
        if table is None:
            return False

        self._requests.admit(request)
        lane.waiting.admit(request)
        lane.promotions.end(request.request_id)
        lane.start_run(request, held.lock, table, start, now_s)
        lane.grammars.begin(request.grammar)
        # Others may wait for the page behind those that L1 has.
        lane.lead(request, found.prefix.num_l1_pages)
        lease_id = self._ask_for_loads(lane, request, start)
        # Only now, for the lease takes over from the lookup what is kept in L2.
        self._source.cancel_lookup(request)
        if lease_id is None:
            self.begin(request, start)
        if found.trial_load_s is not None:
            self._trials.begin(lease_id, found.trial_load_s, now_s)
        return True

    def _wait_no_longer(self, request: RequestState, coming: Coming, now_s: float) -> None:
        if coming.is_asked:
            request.prefetch.note_runnable(now_s)
        else:
            request.prefetch.give_up(PageSource.BELOW_MIN_TOKENS)

    def _ask_for_loads(self, lane: Lane, request: RequestState, start: Start) -> LeaseId | None:
        """Ask for a lease on what an admitted request loads; None if it loads nothing."""
        if not any(start.loads):
            # Where a prefix is taken up it may be taken up again, when L1 has lost its window.
            keep_window(lane, request, start.num_pages)
            return None
        request.wait_for_lease()
        starts = [pages[0] if pages else start.num_pages for pages in start.loads]
        return self._source.ask_lease(request, starts, start.num_pages)

    def begin(self, request: RequestState, start: Start) -> None:
        """Let a request run that knows which cached pages it gets; the rest is planned now."""
        if not any(start.loads):
            self._source.end_claim(request)
        request.start_from(start.num_pages * self._settings.page_size)

        if request.sources is None:
            ranges = attribute(
                request.num_prompt,
                request.prefetch,
                self._settings,
                tiers=start.tiers[: self._settings.reusable_pages(request.num_prompt)],
                num_left_pages=start.num_left_pages,
            )
            request.note_sources(ranges, total_by_source(ranges))

    def load(self, lane: Lane, asker: RequestState | Promotion, load: Load) -> None:
        """Let a request, or a promotion, wait for a load that is about to be sent."""
        match asker:
            case Promotion():
                lane.promotions.wait_for_load(asker, load)
            case RequestState():
                asker.wait_for_load(load)
            case _:
                assert_never(asker)

    def go_on(self, lane: Lane, request: RequestState, now_s: float) -> list[RowOutcome]:
        """Let a request go on whose load is done; returns the outcomes of rows on top of it."""
        self._source.end_claim(request)
        heal(lane, request)
        deferred = request.finish_load()
        keep_window(lane, request, request.start.num_pages)
        publish(lane, request, now_s)
        return deferred

    def join(self, lane: Lane, request: RequestState) -> None:
        """Let a request that has its first token decode with others, unless it wants logprobs."""
        if not request.is_decoding and request.submit.sampling.num_logprobs is None:
            lane.start_decoding(request)

    def requeue(self, request: RequestState) -> None:
        """Let an admitted request give back what it holds and wait again, with its known tokens.

        Where its prompt came from stays as it was at its first admission.
        """
        lane = self._lanes[request.lane]
        num_held_pages = self._give_back(lane, request)
        self._wait_again(request)
        lane.waiting.add(request, num_cached_pages=num_held_pages, lacks=None)

    def lose_run(self, request: RequestState) -> Place:
        """Let a request wait again whose ranks are lost; returns its place among those that wait.

        Nothing is given back, and no page published: what the lane had of it goes as a whole.
        """
        key = order_key(request, self._settings, request.num_held_pages)
        if request.is_decoding:
            self._lanes[request.lane].batch.leave(request)
        self._wait_again(request)
        return key, request

    def _wait_again(self, request: RequestState) -> None:
        self._source.end_claim(request)
        request.stop_running()
        self._requests.stop_running(request)

    def _give_back(self, lane: Lane, request: RequestState) -> int:
        """Let a run end: what it has computed stays cached, what it holds goes back.

        Returns how many of its pages the tree held for it.
        """
        publish_rest(lane, request)
        num_held_pages = request.num_held_pages
        keep_window(lane, request, num_held_pages)
        if request.is_decoding:
            lane.batch.leave(request)
        lane.release(request)
        lane.grammars.end(request.grammar)
        lane.waiting.stop_running(request)
        return num_held_pages

    def displace(self, places: Iterable[Place]) -> None:
        """Move requests that waited on lanes whose ranks are lost to other lanes, in order."""
        displaced = [request for _, request in sorted(places)]
        for request in displaced:
            request.lose_lane()
        self._requests.displace(displaced)

    def end(self, request: RequestState) -> None:
        """End a request, wherever it is: nobody knows it any more."""
        lane = self._lanes[request.lane]
        self._source.forget(request)
        is_running = request.request_id in lane.running
        if is_running:
            publish_rest(lane, request)
        # Now the request itself knows all of its answer.
        self.recorder.note_end(request)

        if is_running:
            node = None if request.lock is None else request.lock.node
            num_held_pages = self._give_back(lane, request)
            note_end(lane, request, num_held_pages)
            if node is not None and self._settings.prefix_caching:
                self.retention.end_use(lane, request, node, num_held_pages)
            else:
                self.retention.end_unserved(request)
        else:
            lane.promotions.end(request.request_id)
            lane.waiting.discard(request)
            self.retention.end_unserved(request)
        request.end()
        self._requests.remove(request)
        self._timers.forget(request.ticket)
        self.explanations.add(request)
