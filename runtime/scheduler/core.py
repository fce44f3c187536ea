"""The Scheduler's brain: a state machine without I/O, events in and effects out."""

from typing import Any

from raydix.ids import RequestId
from raydix.runtime.scheduler import checks, events, figures
from raydix.runtime.scheduler.client_messages import ClientMessages
from raydix.runtime.scheduler.counters import Count, Counters, Timings
from raydix.runtime.scheduler.events import Effect, Event, SendPlan
from raydix.runtime.scheduler.followers import Followers
from raydix.runtime.scheduler.host_messages import HostMessages
from raydix.runtime.scheduler.l1_flush import L1Flush
from raydix.runtime.scheduler.late_ranks import LateRanks
from raydix.runtime.scheduler.life.client_news import ClientNews
from raydix.runtime.scheduler.life.endings import Endings
from raydix.runtime.scheduler.life.expiry import Expiry
from raydix.runtime.scheduler.life.grammars import Grammars
from raydix.runtime.scheduler.life.hand_overs import HandOvers
from raydix.runtime.scheduler.life.hints import Hints
from raydix.runtime.scheduler.life.leases import LeaseAnswers
from raydix.runtime.scheduler.life.load_choice import LoadChoice
from raydix.runtime.scheduler.life.placing import Placing
from raydix.runtime.scheduler.life.requests import Requests
from raydix.runtime.scheduler.life.submission import Submission
from raydix.runtime.scheduler.life.transitions import Transitions
from raydix.runtime.scheduler.life.trials import Trials
from raydix.runtime.scheduler.orders import Orders
from raydix.runtime.scheduler.outbox import Outbox
from raydix.runtime.scheduler.page_news import PageNews
from raydix.runtime.scheduler.phase import Phase
from raydix.runtime.scheduler.pieces import Pieces
from raydix.runtime.scheduler.planner import make_planner
from raydix.runtime.scheduler.rank_events import RankEvents
from raydix.runtime.scheduler.ranks.expert_events import on_experts_planned
from raydix.runtime.scheduler.ranks.lanes import make_lanes
from raydix.runtime.scheduler.ranks.step_group import step_groups
from raydix.runtime.scheduler.rates import Rates
from raydix.runtime.scheduler.routing_news import RoutingNews
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.sleep import Sleep
from raydix.runtime.scheduler.sources.fetch_choice import FetchChoice
from raydix.runtime.scheduler.sources.kv_source import KvSource
from raydix.runtime.scheduler.steps.copy_reports import CopyReports
from raydix.runtime.scheduler.steps.step_results import StepResults
from raydix.runtime.scheduler.steps.transfer_results import TransferResults
from raydix.runtime.scheduler.timers import Timers


class SchedulerCore:
    """Decides about L1 and the requests of one replica. Events come in order of `now_s`.

    It makes the parts, each of which gets those that it works with, and hands them the events.
    """

    def __init__(self, settings: SchedulerSettings, phase: Phase = Phase.AWAKE) -> None:
        """`phase`: ASLEEP if the ranks were put to sleep before, else AWAKE."""
        self.settings = settings
        self._now_s = 0.0
        """The time of the last event."""
        self._outbox, self._timers, self._pieces = Outbox(), Timers(), Pieces()
        self._counters, self._timings = Counters(), Timings()
        self._page_news = PageNews()
        self._rates, self._trials, self._requests = Rates(settings), Trials(), Requests()
        self._source = KvSource(settings, self._outbox, self._counters)
        self._step_groups = step_groups(settings)
        self._lanes = make_lanes(settings, self._step_groups, self._source.view, self._page_news)
        self._choice = LoadChoice(settings, self._source, self._rates, self._trials)
        self._life = Transitions(
            settings,
            requests=self._requests,
            lanes=self._lanes,
            source=self._source,
            fetch=FetchChoice(settings, source=self._source, rates=self._rates),
            choice=self._choice,
            trials=self._trials,
            timers=self._timers,
        )
        self._news = ClientNews(self._outbox, self._counters, self._timings)
        self._hand_overs = HandOvers(
            settings, self._requests, self._source, self._rates, self._timers, self._outbox
        )
        self._endings = Endings(
            requests=self._requests,
            hand_overs=self._hand_overs,
            life=self._life,
            news=self._news,
            pieces=self._pieces,
            counters=self._counters,
        )
        self._grammars = Grammars(
            requests=self._requests, life=self._life, endings=self._endings, outbox=self._outbox
        )
        self._expiry = Expiry(self._requests, self._lanes, self._endings, self._timers)
        self._sleep, self._orders = self._make_orders(phase)
        self._hints = self._make_hints()
        self._placing, self._host = self._make_placing(), self._make_host_messages()
        self._ranks, self._routing_news = self._make_rank_events(), self._make_routing_news()
        self._clients = self._make_client_messages()
        self._late_ranks = LateRanks(
            settings, self._lanes, self._step_groups, self._rates, self._outbox, self._timers
        )
        self._planner = make_planner(
            settings,
            requests=self._requests,
            lanes=self._lanes,
            source=self._source,
            rates=self._rates,
            choice=self._choice,
            life=self._life,
            timers=self._timers,
            counters=self._counters,
        )
        news, view = self._page_news, self._source.view
        self._followers = Followers(settings, news, self._lanes, view, self._outbox)

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Hear one event, and decide at once."""
        self.hear(event, now_s)
        return self.decide(now_s)

    def hear(self, event: Event, now_s: float) -> None:
        """Take note of an event; any number of them may come before the next `decide`."""
        self._now_s = now_s
        self._source.start_clocks(now_s)
        self._life.advance(now_s)
        if self._sleep.is_awake:
            self._life.retention.load_due()
        self._take(event, now_s)

    def decide(self, now_s: float) -> list[Effect]:
        """Plan, after all that was heard at `now_s`; effects are to be carried out in order."""
        self._sleep.advance(now_s)
        until_s = self._sleep.placed_until_s
        num_left = self._placing.place_some(now_s, until_s=until_s)
        if self._requests.hints and not self._requests.has_unplaced(until_s):
            self._hints.look_up_some(num_left, now_s)
        self._life.look_up_due()
        self._host.tell_if_drained(is_asleep=self._sleep.phase is Phase.ASLEEP)
        self._hand_overs.tell(now_s)
        self._life.arrivals.advance(now_s, is_awake=self._sleep.is_awake)
        if self._pieces.has_work:
            self._timers.add(now_s)
        sent: list[Effect] = []
        for step_group in self._step_groups:
            while plans := self._planner.next_plans(step_group, now_s):
                for lane, plan in plans:
                    lane.counters.count(Count.PLANS)
                    sent.append(SendPlan(lane=lane.index, connections=lane.connections, plan=plan))
        # Only now, for who is admitted asks for leases.
        if (late_s := self._source.next_late_s(now_s)) is not None:
            self._timers.add(late_s)
        if self._page_news.has_more and self._followers.tell():
            self._timers.add(now_s)
        self._routing_news.tell(now_s)
        # Requests end above, too: nobody may come for a while who would notice later.
        self._grammars.drop_left()
        # Plans go first, over links of their own: devices may wait for them.
        return [*sent, *self._outbox.take()]

    @property
    def phase(self) -> Phase:
        """Whether the engine is awake, sleeps, or is on its way to either."""
        return self._sleep.phase

    def next_deadline_s(self) -> float | None:
        """The time at which a `Tick` is due if no other event comes before; None: never."""
        return self._timers.next_s()

    @property
    def is_idle(self) -> bool:
        """Whether there is no request, and nothing in flight."""
        return self._requests.is_empty and all(each.has_nothing_under_way for each in self._lanes)

    @property
    def is_attached(self) -> bool:
        """Whether all ranks have attached and HostMemory, if any, has said if there is an L3."""
        knows_host = not self.settings.has_host_memory or self._source.view.has_storage is not None
        return knows_host and all(step_group.is_attached for step_group in self._step_groups)

    @property
    def is_backed_up(self) -> bool:
        """Whether no page waits for its copy to L2; True if HostMemory is not usable."""
        return not self._source.view.is_usable or not any(len(lane.backups) for lane in self._lanes)

    def explain(self, request_id: RequestId) -> dict[str, Any] | None:
        """Explain where a recent request's prompt came from, by token range; None if unknown."""
        return self._life.explanations.find(request_id)

    def prefetch_state(self, request_id: RequestId) -> dict[str, Any] | None:
        """How far a client's prefetch has come, or what has become of it; None if unknown."""
        return self._hints.told(request_id)

    def stats(self) -> dict[str, Any]:
        """Counters (they only grow), distributions and gauges, by name."""
        return {
            **figures.counted(self._counters, self._lanes),
            **self._timings.figures(),
            **figures.of_ranks(self._lanes, self._step_groups, self._now_s),
            **figures.of_requests(self._requests, self._lanes),
            **figures.of_l1(self.settings, self._lanes),
            **self._source.figures(),
            **self._life.retention.figures(),
            **self._routing_news.figures(self._now_s),
            "phase": self.phase.value,
        }

    def check(self) -> None:
        """Raise AccountingError, with the figures, unless every invariant holds."""
        checks.check_lanes(self._lanes, self._step_groups)
        checks.check_requests(self._requests, self._lanes, self._source, self._timers)
        self._life.retention.check()
        self._life.arrivals.check()
        self._grammars.check()
        self._page_news.keys.check()
        self._sleep.check()
        if self.is_idle:
            checks.check_idle(self._lanes, self._source)

    def _take(self, event: Event, now_s: float) -> None:
        match event:
            case events.ClientMessage() | events.ClientGone():
                self._clients.hear(event, now_s)
            case events.RankAttached():
                self._ranks.attach(event)
            case events.RankMessage():
                self._ranks.take(event, now_s)
            case events.RankLost():
                self._ranks.lose(event)
            case events.HostAttached() | events.HostMessage() | events.HostLost():
                self._host.hear(event, now_s)
            case events.FollowerAttached() | events.FollowerLost():
                self._followers.take(event)
            case events.ExpertsPlanned():
                on_experts_planned(self._step_groups[event.step_group], event)
            case events.GrammarCompiled():
                self._grammars.take(event)
            case events.BeginRecording() | events.TakeRecording() | events.EndRecording():
                for request in self._requests.living.values():
                    # Requests hear of their tokens a few at a time.
                    if request.is_decoding:
                        self._lanes[request.lane].batch.flush_tokens(request)
                self._outbox.emit(self._life.recorder.take(event))
            case events.Tick():
                self._tick(now_s)
            case _:
                self._orders.take(event, now_s)

    def _tick(self, now_s: float) -> None:
        """Look at the clock, as only a tick does: all that was said by then has been taken."""
        self._pieces.advance()
        self._expiry.advance(now_s)
        self._host.time_out(now_s)
        self._late_ranks.condemn(now_s)

    def _make_routing_news(self) -> RoutingNews:
        return RoutingNews(
            self.settings,
            keys=self._page_news.keys,
            requests=self._requests,
            lanes=self._lanes,
            source=self._source,
            rates=self._rates,
            sleep=self._sleep,
            timers=self._timers,
            outbox=self._outbox,
        )

    def _make_orders(self, phase: Phase) -> tuple[Sleep, Orders]:
        requests, endings, lanes = self._requests, self._endings, self._lanes
        sleep = Sleep(
            self.settings,
            phase,
            requests=requests,
            lanes=lanes,
            step_groups=self._step_groups,
            source=self._source,
            endings=endings,
            life=self._life,
            timers=self._timers,
            outbox=self._outbox,
        )
        flush = L1Flush(lanes, self._pieces, self._outbox)
        return sleep, Orders(
            flush=flush, requests=requests, endings=endings, lanes=lanes, sleep=sleep
        )

    def _make_hints(self) -> Hints:
        return Hints(
            self.settings,
            requests=self._requests,
            lanes=self._lanes,
            source=self._source,
            outbox=self._outbox,
            timers=self._timers,
            counters=self._counters,
        )

    def _make_client_messages(self) -> ClientMessages:
        submission = Submission(
            self.settings,
            requests=self._requests,
            lanes=self._lanes,
            endings=self._endings,
            grammars=self._grammars,
            outbox=self._outbox,
            timers=self._timers,
            counters=self._counters,
        )
        return ClientMessages(
            submission=submission,
            hints=self._hints,
            endings=self._endings,
            life=self._life,
            routing_news=self._routing_news,
            sleep=self._sleep,
        )

    def _make_placing(self) -> Placing:
        return Placing(
            self.settings,
            requests=self._requests,
            lanes=self._lanes,
            source=self._source,
            rates=self._rates,
            life=self._life,
            timers=self._timers,
        )

    def _make_host_messages(self) -> HostMessages:
        leases = LeaseAnswers(
            self.settings, lanes=self._lanes, source=self._source, life=self._life
        )
        return HostMessages(
            requests=self._requests,
            lanes=self._lanes,
            step_groups=self._step_groups,
            source=self._source,
            leases=leases,
            hints=self._hints,
            life=self._life,
            pieces=self._pieces,
            counters=self._counters,
            news=self._page_news,
        )

    def _make_rank_events(self) -> RankEvents:
        steps = StepResults(
            rates=self._rates,
            life=self._life,
            endings=self._endings,
            news=self._news,
            outbox=self._outbox,
            counters=self._counters,
            timings=self._timings,
        )
        reports = CopyReports(self._rates, self._trials, self._counters, self._timings)
        transfers = TransferResults(
            requests=self._requests,
            source=self._source,
            reports=reports,
            steps=steps,
            life=self._life,
        )
        return RankEvents(
            self.settings,
            lanes=self._lanes,
            step_groups=self._step_groups,
            source=self._source,
            steps=steps,
            transfers=transfers,
            life=self._life,
            endings=self._endings,
            sleep=self._sleep,
            outbox=self._outbox,
            counters=self._counters,
        )
