"""A waiting request has its turn: facts are gathered, it is decided, and that is carried out."""

from enum import Enum
from typing import assert_never

from raydix.runtime.scheduler.counters import Count, Counters
from raydix.runtime.scheduler.life.admission import (
    Decision,
    FallBack,
    Follow,
    LookUpLost,
    Run,
    WaitForPages,
    decide,
)
from raydix.runtime.scheduler.life.facts import Looks
from raydix.runtime.scheduler.life.load_ahead import LoadAhead
from raydix.runtime.scheduler.life.requests import Requests
from raydix.runtime.scheduler.life.transitions import Transitions
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.settings import SchedulerSettings


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
        looks: Looks,
        ahead: LoadAhead,
        life: Transitions,
        counters: Counters,
    ) -> None:
        self._settings = settings
        self._requests = requests
        self._looks = looks
        self._ahead = ahead
        self._life = life
        self._counters = counters

    def try_admit(self, lane: Lane, request: RequestState, now_s: float) -> Verdict:
        """Decide what becomes of one waiting request, and carry it out."""
        verdict = self._hold_back(lane, request)
        if verdict is not None:
            return verdict
        facts = self._looks.look(lane, request, now_s)
        decision = decide(self._settings, facts, now_s)
        return self._carry_out(lane, request, decision, now_s)

    def _hold_back(self, lane: Lane, request: RequestState) -> Verdict | None:
        """Let a request wait that may not run, whatever is cached of it; None: it may run."""
        if request.request_id in self._requests.orphans:
            lane.waiting.park(request, lacks=None)
            return Verdict.WAITS
        if request.grammar.key is None:
            return None
        if request.grammar.is_missing:
            self._life.await_grammar(lane, request)
            return Verdict.WAITS
        return None if lane.grammars.has_room(request.grammar) else Verdict.NO_ROOM

    def _carry_out(
        self, lane: Lane, request: RequestState, decision: Decision, now_s: float
    ) -> Verdict:
        match decision:
            case Run():
                return self._run(lane, request, decision, now_s)
            case WaitForPages():
                is_parked = self._ahead.wait(lane, request, decision, now_s)
                return Verdict.WAITS if is_parked else Verdict.NO_ROOM
            case LookUpLost():
                has_room = self._life.look_up_lost(lane, request, decision, now_s)
                return Verdict.WAITS if has_room else Verdict.NO_ROOM
            case FallBack():
                return self._fall_back(lane, request, decision, now_s)
            case Follow():
                leader = decision.leader
                lane.waiting.park(request, lacks=leader.brings, leader=leader.name)
                return Verdict.WAITS
            case _:
                assert_never(decision)

    def _run(self, lane: Lane, request: RequestState, run: Run, now_s: float) -> Verdict:
        if not self._life.admit(lane, request, run, now_s):
            return Verdict.NO_ROOM
        if run.found.loaded is not None:
            self._counters.count(Count.LOAD_DECISIONS)
        elif run.found.prefix.num_l2_pages:
            self._counters.count(Count.RECOMPUTE_DECISIONS)
        return Verdict.ADMITTED

    def _fall_back(
        self, lane: Lane, request: RequestState, back: FallBack, now_s: float
    ) -> Verdict:
        self._life.place_anew(lane, request, back.num_pages)
        if lane.waiting.next_turn(now_s) is not request:
            return Verdict.WAITS
        return self._carry_out(lane, request, back.then, now_s)
