"""How many waiting requests are admitted for a step, and which are tried."""

from collections.abc import Iterable

from raydix.runtime.scheduler.life.attempts import Attempts, Verdict
from raydix.runtime.scheduler.life.transitions import Transitions
from raydix.runtime.scheduler.prompt_shares import PromptWork, most_beside
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.request.request_order import level_of
from raydix.runtime.scheduler.request.state import State
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.sources.kv_source import KvSource
from raydix.runtime.scheduler.timers import Timers

_MAX_MOVED = 16
"""The most waiting requests whose place is chosen anew per step; it bounds what a step costs."""
_MAX_PAGES_IN_VAIN = 16_384
"""The most pages that a step looks up for waiting requests which then do not run: 2 ms. After a
change for everybody the whole queue is looked at: the rest follows with the next ticks, between
other events.
"""
_LOOK_PAGES = 256
"""A look at one request counts for at least so many pages, or for all pages of a longer prompt."""


class Backlog:
    """Owns: what admitted prompts leave to later steps, and so who may be admitted beside them.

    Some are admitted beyond what a step has left: their pages are loaded while others are computed.
    Nobody is admitted to wait for steps to come: pages and slots stay free, and the order open.
    """

    def __init__(self, settings: SchedulerSettings, prompts: Iterable[PromptWork]) -> None:
        self._settings = settings
        self._prompts = [prompt for prompt in prompts if prompt.num_tokens > 0]

    def add(self, request: RequestState) -> None:
        """Add the prompt of a request that has just been admitted."""
        # What it loads first keeps nobody else from being admitted.
        if request.state is State.PREFILLING:
            work = PromptWork(
                num_planned=request.num_planned,
                num_tokens=request.num_to_plan,
                level=level_of(request, self._settings),
                priority=request.submit.priority,
            )
            self._prompts.append(work)

    def has_room(self, level: int) -> bool:
        """Whether the prompts that go before a newcomer of this level leave it some of a step."""
        before = sum([one.num_tokens for one in self._prompts if one.level <= level])
        return before < self._settings.prefill_budget_tokens

    def long_prompt(self) -> PromptWork | None:
        """The prompt that takes several of the next steps; None if no prompt does."""
        first = min(self._prompts, key=lambda one: one.level, default=None)
        room = self._settings.step_room
        return first if first is not None and room.is_long(first) else None

    def has_room_beside(self, num_tokens: int, long: PromptWork) -> bool:
        """Whether a prompt of this length would soon have its turn in the share beside a long one.

        There the shortest go first; those of one binary order of magnitude count as equal.
        """
        shorter = [
            one.num_tokens
            for one in self._prompts
            if one is not long and one.num_tokens.bit_length() <= num_tokens.bit_length()
        ]
        return sum(shorter) < self._settings.step_room.short_tokens()


class AdmissionTurns:
    """Decides which waiting requests are looked at for a step."""

    def __init__(
        self,
        settings: SchedulerSettings,
        attempts: Attempts,
        *,
        source: KvSource,
        life: Transitions,
        timers: Timers,
    ) -> None:
        self._settings = settings
        self._attempts = attempts
        self._source = source
        self._life = life
        self._timers = timers

    def admit_waiting(self, lane: Lane, now_s: float, backlog: Backlog) -> None:
        """Admit waiting requests, in order, until one has no room or there is enough to compute.

        Past a long prompt shorter ones are admitted, too, to share its steps.
        """
        looks = _Looks(self._attempts, self._timers, lane, backlog, now_s)
        self._move_grown(lane)

        # Whoever is looked at runs, is parked, moves back, or has no room.
        while (
            looks.may_go_on
            and (request := lane.waiting.next_turn(now_s)) is not None
            and backlog.has_room(lane.waiting.key(request).level)
        ):
            looks.look_at(request)

        long = backlog.long_prompt()
        if long is None:
            return
        most = most_beside(long.num_tokens, self._settings.short_prompt_fraction)
        while (
            looks.may_go_on
            and (request := lane.waiting.short_turn(most, long)) is not None
            and backlog.has_room_beside(lane.waiting.num_to_compute(request), long)
        ):
            looks.look_at(request)

    def _move_grown(self, lane: Lane) -> None:
        """Move requests forward of which more is cached than at their last place."""
        for _ in range(_MAX_MOVED):
            if (request := lane.waiting.take_grown()) is None:
                return
            found = self._source.find_prefix(request, lane.match(request.chain))
            self._life.place_anew(lane, request, found.num_pages)


class _Looks:
    """Owns: how much longer a step looks at waiting requests."""

    def __init__(
        self, attempts: Attempts, timers: Timers, lane: Lane, backlog: Backlog, now_s: float
    ) -> None:
        self._attempts, self._timers = attempts, timers
        self._lane, self._backlog = lane, backlog
        self._now_s = now_s
        self._num_pages_left = _MAX_PAGES_IN_VAIN
        self._has_room = True

    @property
    def may_go_on(self) -> bool:
        """Whether the step may look at another waiting request."""
        return self._has_room and self._num_pages_left > 0 and self._lane.has_free_slot

    def look_at(self, request: RequestState) -> None:
        """Admit a request, or see why not."""
        match self._attempts.try_admit(self._lane, request, self._now_s):
            case Verdict.ADMITTED:
                self._backlog.add(request)
            case Verdict.WAITS:
                self._num_pages_left -= max(_LOOK_PAGES, request.chain.num_prompt_pages)
                if self._num_pages_left <= 0:
                    self._timers.add(self._now_s)
            case Verdict.NO_ROOM:
                self._has_room = False
