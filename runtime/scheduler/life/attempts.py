"""A look at one waiting request: what is decided of it is carried out."""

from enum import Enum
from typing import assert_never

from raydix.runtime.config.policies import SchedulingPolicy
from raydix.runtime.scheduler.counters import Count, Counters
from raydix.runtime.scheduler.life.admission import (
    Admission,
    Follow,
    LackRoom,
    LookUpLost,
    Run,
    WaitForPages,
)
from raydix.runtime.scheduler.life.load_ahead import LoadAhead
from raydix.runtime.scheduler.life.load_choice import Assessment, LoadChoice
from raydix.runtime.scheduler.life.requests import Requests
from raydix.runtime.scheduler.life.transitions import Transitions
from raydix.runtime.scheduler.life.trials import Trials
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.timers import Timers


class Verdict(Enum):
    """What became of a waiting request that was looked at."""

    ADMITTED = "admitted"
    WAITS = "waits"
    """The request waits for something of its own; others may go first."""
    NO_ROOM = "no room"
    """The request waits for free pages or for a slot; no other request may overtake it."""


class Attempts:
    """Tries to admit waiting requests, one at a time."""

    def __init__(
        self,
        settings: SchedulerSettings,
        *,
        requests: Requests,
        choice: LoadChoice,
        admission: Admission,
        ahead: LoadAhead,
        trials: Trials,
        life: Transitions,
        timers: Timers,
        counters: Counters,
    ) -> None:
        self._settings = settings
        self._requests = requests
        self._choice = choice
        self._admission = admission
        self._ahead = ahead
        self._trials = trials
        self._life = life
        self._timers = timers
        self._counters = counters

    def try_admit(self, lane: Lane, request: RequestState, now_s: float) -> Verdict:
        """Decide what becomes of one waiting request, and carry it out."""
        if request.request_id in self._requests.orphans:
            lane.waiting.park(request, lacks=None)
            return Verdict.WAITS
        if request.grammar.is_missing:
            self._life.await_grammar(lane, request)
            return Verdict.WAITS
        if not lane.grammars.has_room(request.grammar):
            return Verdict.NO_ROOM
        found = self._choice.assess(lane, request, now_s)
        if self._falls_back(lane, request, found.prefix.num_pages):
            return Verdict.WAITS

        decision = self._admission.decide(lane, request, found, now_s)
        match decision:
            case Run():
                self._run(lane, request, found, decision, now_s)
                return Verdict.ADMITTED
            case LackRoom():
                return Verdict.NO_ROOM
            case WaitForPages():
                self._watch(request, decision.until_s, now_s)
                is_parked = self._ahead.park(lane, request, found.prefix, decision.lock, now_s)
                return Verdict.WAITS if is_parked else Verdict.NO_ROOM
            case LookUpLost():
                self._life.look_up_lost(lane, request)
                lane.waiting.park(request, lacks=None)
            case Follow():
                lane.waiting.park(request, lacks=decision.lacks, leader=decision.leader)
            case _:
                assert_never(decision)
        return Verdict.WAITS

    def _falls_back(self, lane: Lane, request: RequestState, num_pages: int) -> bool:
        """Under `lpm`, move a request back of which less is cached now; True: others go first."""
        settings = self._settings
        is_by_match = settings.policy is SchedulingPolicy.LPM and settings.prefix_caching
        if not is_by_match or num_pages >= lane.waiting.num_cached_pages(request):
            return False
        self._life.place_anew(lane, request, num_pages)
        return lane.waiting.next_turn() is not request

    def _watch(self, request: RequestState, until_s: float | None, now_s: float) -> None:
        """Be woken when a request waits no longer for its pages."""
        if until_s is not None and request.prefetch.set_alarm(until_s, now_s):
            self._timers.add(until_s, request.ticket)

    def _run(
        self, lane: Lane, request: RequestState, found: Assessment, run: Run, now_s: float
    ) -> None:
        num_l1_pages = found.prefix.num_l1_pages
        lease_id = self._life.admit(
            lane, request, run.lock, run.table, run.start, num_l1_pages=num_l1_pages, now_s=now_s
        )
        if lease_id is not None:
            self._counters.count(Count.LOAD_DECISIONS)
        elif found.prefix.num_l2_pages:
            self._counters.count(Count.RECOMPUTE_DECISIONS)
        if found.trial_load_s is not None:
            self._trials.begin(lease_id, found.trial_load_s, now_s)
