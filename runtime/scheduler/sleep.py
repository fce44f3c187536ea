"""An engine that sleeps: what it does before it gives its GPUs' memory back, and what after."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from raydix.errors import AccountingError
from raydix.ids import ConnectionId
from raydix.runtime.messages.client import FailureKind, RequestFailure
from raydix.runtime.scheduler.events import GiveBack, PhaseReached, TakeAgain
from raydix.runtime.scheduler.life.endings import Endings
from raydix.runtime.scheduler.life.parking import park
from raydix.runtime.scheduler.life.requests import Requests
from raydix.runtime.scheduler.life.transitions import Transitions
from raydix.runtime.scheduler.outbox import Outbox
from raydix.runtime.scheduler.phase import OrderOutcome, Phase
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.ranks.step_group import StepGroup
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.sources.kv_source import KvSource
from raydix.runtime.scheduler.timers import Alarm, Timers

_BACKUP_PATIENCE_S = 10.0
"""Seconds for which no page may leave the queue of backups before what is left counts as lost: as
long as a HostMemory that has died may take to come back.
"""
_MAX_REFUSED = 256
"""The most requests that one event refuses because they have waited for the wake too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the engine has come on its way into sleep, or out of it."""

    are_all_there: bool
    """Whether every rank is attached."""
    are_all_gone: bool
    """Whether no rank is attached."""
    has_given_back: bool
    """Whether the ranks' memory has been given back, as the Supervisor says."""
    is_overdue: bool
    """Whether requests have gone on for as long as they may."""
    is_busy: bool
    """Whether lanes have requests, steps or copies, or anything of L2 is leased."""
    num_to_back_up: int
    """The pages that wait for their copy to L2, and may still get it."""


def next_phase(phase: Phase, progress: Progress) -> Phase:
    """The phase that follows from how far the engine has come, perhaps the same."""
    is_at_rest = progress.are_all_there and not progress.is_busy
    match phase:
        case Phase.DRAINING | Phase.PARKING if is_at_rest:
            return Phase.BACKING_UP
        case Phase.DRAINING if progress.is_overdue:
            return Phase.PARKING
        case Phase.BACKING_UP if is_at_rest and not progress.num_to_back_up:
            return Phase.GIVING_BACK
        case Phase.GIVING_BACK if progress.are_all_gone and progress.has_given_back:
            return Phase.ASLEEP
        case Phase.WAKING if progress.are_all_there:
            return Phase.AWAKE
        case _:
            return phase


class Sleep:
    """Owns: in which phase between awake and asleep the engine is.

    New requests get no lane until it is awake. Those that had one are answered first, as far as
    `max_drain_s` goes; what is left then waits for the wake, too.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        phase: Phase,
        *,
        requests: Requests,
        lanes: Sequence[Lane],
        step_groups: Sequence[StepGroup],
        source: KvSource,
        endings: Endings,
        life: Transitions,
        timers: Timers,
        outbox: Outbox,
    ) -> None:
        """`phase`: ASLEEP if the ranks sleep already, as of a Scheduler that came later."""
        self._settings = settings
        self.phase = phase
        self._requests = requests
        self._lanes = lanes
        self._step_groups = step_groups
        self._source = source
        self._endings = endings
        self._life = life
        self._timers = timers
        self._outbox = outbox
        self._with_weights = False
        """Whether the weights are to go, too, as whoever asked for most has it."""
        self._gave_weights = False
        """Whether the latest order to give memory back has named the weights."""
        self._has_given_back = phase is Phase.ASLEEP
        self._is_wanted_awake = False
        """Whether somebody wants the engine awake as soon as it sleeps."""
        self._num_orders = 0
        self._found: list[Phase] = []
        """The phases in which orders have found the engine of which nothing was told yet."""
        self._since_s = -math.inf
        """The time since which requests wait."""
        self._none_late_until_s = -math.inf
        """The time before which no request has waited for the wake too long."""
        self._offered_to: ConnectionId | None = None
        """The link to the HostMemory that was to get all pages that L1 alone had."""
        self._fewest_left = 0
        """The fewest pages that have been left to back up, and since when."""
        self._fewest_since_s = -math.inf
        self._alarm = Alarm()

    @property
    def is_awake(self) -> bool:
        """Whether requests get lanes."""
        return self.phase is Phase.AWAKE

    @property
    def placed_until_s(self) -> float:
        """The time up to which requests must have arrived to get lanes now.

        Those that the engine had when it was told to sleep are answered first, also if their ranks
        are lost meanwhile.
        """
        match self.phase:
            case Phase.AWAKE:
                return math.inf
            case Phase.DRAINING:
                return self._since_s
            case _:
                return -math.inf

    @property
    def ranks_may_leave(self) -> bool:
        """Whether a rank whose link closes does what it was asked to."""
        return self.phase in (Phase.GIVING_BACK, Phase.ASLEEP)

    def fall_asleep(self, *, with_weights: bool, now_s: float) -> None:
        """Begin to sleep; one that sleeps, or is about to, goes on with that.

        Weights that it has kept so far go as well if they are to.
        """
        self._note_order()
        self._is_wanted_awake = False
        match self.phase:
            case Phase.AWAKE:
                self._with_weights, self._since_s = with_weights, now_s
                self._none_late_until_s = -math.inf
                self.phase = Phase.DRAINING
                self._timers.add(self._drained_until_s)
            case Phase.WAKING:
                # Nothing has run since: what has been taken goes back.
                self._with_weights = with_weights
                self._give_back()
            case Phase.ASLEEP if with_weights and not self._gave_weights:
                self._with_weights = True
                self._give_back()
            case Phase.ASLEEP:
                self._tell_phase()
            case Phase.DRAINING | Phase.PARKING | Phase.BACKING_UP | Phase.GIVING_BACK:
                self._with_weights |= with_weights

    def wake(self, now_s: float) -> None:
        """Begin to wake; what has not been given back stays as it is."""
        self._note_order()
        match self.phase:
            case Phase.AWAKE | Phase.DRAINING | Phase.PARKING | Phase.BACKING_UP:
                self._enter(Phase.AWAKE, now_s)
            case Phase.GIVING_BACK:
                self._is_wanted_awake = True
            case Phase.ASLEEP:
                self._take_again()
            case Phase.WAKING:
                pass

    def _note_order(self) -> None:
        self._num_orders += 1
        self._found.append(self.phase)

    def note_given_back(self) -> None:
        """Note that no rank holds memory any more that it was to give back."""
        self._has_given_back = True

    def advance(self, now_s: float) -> None:
        """Go as far as the ranks and their work have come, and refuse who has waited too long."""
        if self.phase is Phase.AWAKE:
            return
        if self.phase in (Phase.DRAINING, Phase.PARKING, Phase.BACKING_UP):
            if self._requests.is_closing:
                # The engine is about to stop: that is not to wait for a wake.
                self._enter(Phase.AWAKE, now_s)
                return
            self._end_returns()
        while (following := next_phase(self.phase, self._progress(now_s))) is not self.phase:
            self._move_to(following, now_s)
        if not self.is_awake:
            self._refuse_late(now_s)

    def _move_to(self, phase: Phase, now_s: float) -> None:
        match phase:
            case Phase.PARKING:
                self.phase = phase
                for lane in self._lanes:
                    park(lane, self._life)
            case Phase.BACKING_UP:
                self.phase = phase
                self._offer_all(now_s)
            case Phase.GIVING_BACK:
                self._give_back()
            case Phase.ASLEEP if self._is_wanted_awake:
                self._take_again()
            case Phase.ASLEEP if self._with_weights and not self._gave_weights:
                # Somebody has asked for more while the order was carried out.
                self._give_back()
            case _:
                self._enter(phase, now_s)

    def _enter(self, phase: Phase, now_s: float) -> None:
        self.phase = phase
        # What has come due meanwhile has its turn with the next event.
        self._timers.add(now_s)
        self._tell_phase()

    def _tell_phase(self) -> None:
        outcomes = tuple(
            OrderOutcome(found=found, reached=self.phase, is_closing=self._requests.is_closing)
            for found in self._found
        )
        self._found = []
        self._outbox.emit(
            PhaseReached(phase=self.phase, num_orders=self._num_orders, outcomes=outcomes)
        )

    def _give_back(self) -> None:
        self.phase, self._has_given_back = Phase.GIVING_BACK, False
        self._gave_weights = self._with_weights
        order = GiveBack(with_weights=self._with_weights, num_lost_pages=self._num_waiting_pages())
        self._outbox.emit(order)
        # What is lost by then is lost: no plan may come any more, though L2 may take pages again.
        for lane in self._lanes:
            lane.backups.give_up()

    def _take_again(self) -> None:
        self.phase, self._is_wanted_awake = Phase.WAKING, False
        self._outbox.emit(TakeAgain())

    def _progress(self, now_s: float) -> Progress:
        groups = self._step_groups
        is_busy = any(
            lane.running or len(lane.waiting) or not lane.has_nothing_under_way
            for lane in self._lanes
        )
        return Progress(
            are_all_there=all(group.is_attached for group in groups),
            are_all_gone=not any(group.attached for group in groups),
            has_given_back=self._has_given_back,
            is_overdue=now_s >= self._drained_until_s,
            is_busy=is_busy
            or bool(self._source.leases)
            or self._requests.has_unplaced(self.placed_until_s),
            num_to_back_up=self._num_to_back_up(now_s),
        )

    @property
    def _drained_until_s(self) -> float:
        """The time up to which requests may go on that the engine had when it was to sleep."""
        return self._since_s + self._settings.max_drain_s

    def _num_waiting_pages(self) -> int:
        return sum(len(lane.backups) for lane in self._lanes)

    def _num_to_back_up(self, now_s: float) -> int:
        """The pages that wait for their copy; none if L2 takes none for too long."""
        if self.phase is not Phase.BACKING_UP or not self._settings.has_host_memory:
            return 0
        is_another = self._source.view.connection != self._offered_to
        if is_another and not any(lane.in_flight.transfers for lane in self._lanes):
            # What a HostMemory was to get that has died is forgotten, or was on its way to it: the
            # next one is to get it, also if that came before anybody looked.
            self._offer_all(now_s)
        num_left = self._num_waiting_pages()
        if num_left < self._fewest_left:
            self._fewest_left, self._fewest_since_s = num_left, now_s
        due_s = self._fewest_since_s + _BACKUP_PATIENCE_S
        if num_left and now_s >= due_s:
            return 0
        if num_left:
            self._look_again(due_s, now_s)
        return num_left

    def _offer_all(self, now_s: float) -> None:
        for lane in self._lanes:
            lane.back_up_all()
        self._offered_to = self._source.view.connection
        self._fewest_left, self._fewest_since_s = self._num_waiting_pages(), now_s

    def _end_returns(self) -> None:
        """Load nothing for what is to come: that would end with L1.

        What is loaded for requests that wait goes on, as they are answered first: a prompt that
        goes through L2 by turns would never come whole without.
        """
        for lane in self._lanes:
            for promotion in lane.promotions.all():
                if not promotion.is_for_waiting_request:
                    lane.promotions.end(promotion.request_id)

    def _refuse_late(self, now_s: float) -> None:
        """End requests that have waited for the wake as long as they may.

        Those that the engine had before wait on, as they were taken in, and so do outputs that have
        begun, here or elsewhere, of which clients ask for the rest. Thousands may wait: they are
        looked at when the first of them is late.
        """
        if now_s < self._none_late_until_s:
            return
        unplaced = self._requests.unplaced.values()
        new = (each for each in unplaced if each.arrival_s > self._since_s)
        left = [each for each in new if not len(each.submit.earlier_output)]
        if unplaced and not left and self._settings.max_asleep_wait_s:
            self._let_wait(now_s + self._settings.max_asleep_wait_s)
            return
        for request in left[:_MAX_REFUSED]:
            due_s = self._wait_until_s(request)
            if now_s < due_s:
                self._let_wait(due_s)
                return
            self._endings.fail_as(request, self._refusal())
        if len(left) > _MAX_REFUSED:
            self._timers.add(now_s)

    def _let_wait(self, until_s: float) -> None:
        """Note that no request is late before then: whoever comes later is late no sooner."""
        self._none_late_until_s = until_s
        self._timers.add(until_s)

    def _wait_until_s(self, request: RequestState) -> float:
        return max(request.arrival_s, self._since_s) + self._settings.max_asleep_wait_s

    def _refusal(self) -> RequestFailure:
        waited_s = self._settings.max_asleep_wait_s
        text = (
            f"The engine is {self.phase.value}, and was not awake within {waited_s:g} s. Wake it "
            "with raydix wake, or ask another engine."
        )
        return RequestFailure(
            kind=FailureKind.ASLEEP, message=text, retry_after_s=max(1.0, waited_s)
        )

    def _look_again(self, time_s: float, now_s: float) -> None:
        if self._alarm.advance(time_s, now_s):
            self._timers.add(time_s)

    def check(self) -> None:
        """Raise AccountingError if anything is done with memory that has gone, or is to go."""
        if not self.ranks_may_leave:
            return
        for lane in self._lanes:
            used = sum(lane.l1.pools.count(lambda pool: pool.num_used + pool.num_quarantined))
            is_believed = used and self.phase is Phase.ASLEEP
            if is_believed or lane.running or not lane.has_nothing_under_way:
                raise AccountingError(
                    f"lane {lane.index} is {self.phase.value}, but has {used} pages in use, "
                    f"{len(lane.running)} requests that run, {len(lane.promotions)} loads to come, "
                    f"and {lane.in_flight}"
                )
        if self._source.leases:
            raise AccountingError(
                f"the engine is {self.phase.value}, but has {len(self._source.leases)} leases"
            )
