"""The Scheduler's brain: a state machine without I/O, events in and effects out."""

from collections import Counter
from typing import Any, assert_never

from raydix.errors import AccountingError
from raydix.ids import ClientId, RequestId
from raydix.runtime.messages.arrays import empty
from raydix.runtime.messages.client import (
    AbortRequest,
    FailureKind,
    FinishReason,
    PrefetchPrompt,
    StopRequest,
    SubmitRequest,
)
from raydix.runtime.metrics import BY_RANK
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.counters import Count, Duration
from raydix.runtime.scheduler.events import Effect, Event, SendPlan
from raydix.runtime.scheduler.expert_events import on_experts_planned
from raydix.runtime.scheduler.hints import abort_hint, drop_hints, submit_hint
from raydix.runtime.scheduler.host_messages import (
    on_host_attached,
    on_host_lost,
    on_host_message,
    tell_if_drained,
    time_out_host,
)
from raydix.runtime.scheduler.l1_flush import L1Flush
from raydix.runtime.scheduler.life.state import PREPARING, State, require_states
from raydix.runtime.scheduler.planning import next_plans
from raydix.runtime.scheduler.rank_events import (
    condemn_late_ranks,
    on_rank_attached,
    on_rank_lost,
    on_rank_message,
)
from raydix.runtime.scheduler.replica import Replica
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.submission import place_requests, submit

_MAX_DUE = 256
"""The most requests whose deadlines one tick looks at; if more are due, the next tick comes at
once.
"""


class SchedulerCore:
    """Decides about L1 and the requests of one replica. Events come in order of `now_s`."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings
        self._replica = Replica(settings)
        self._flush = L1Flush(self._replica)
        self._now_s = 0.0
        """The time of the last event."""

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Take one event; the effects are to be carried out in order."""
        self._now_s = now_s
        replica = self._replica
        replica.host.unanswered.start_clocks(now_s)

        self._take(event, now_s)
        place_requests(replica, now_s)
        replica.send_due_lookups()
        tell_if_drained(replica)
        if replica.pieces.has_work:
            replica.wake_at(now_s)

        sent: list[Effect] = []
        for group in replica.step_groups:
            while plans := next_plans(replica, group, now_s):
                for lane, plan in plans:
                    lane.counters.count(Count.PLANS)
                    sent.append(SendPlan(lane=lane.index, connections=lane.connections, plan=plan))
        # Only now, for who is admitted asks for leases.
        self._watch_host(now_s)

        # Plans go first, over links of their own: devices may wait for them.
        return [*sent, *replica.take_effects()]

    def next_deadline_s(self) -> float | None:
        """The time at which a `Tick` is due if no other event comes before; None: never."""
        return self._replica.timers.next_s()

    @property
    def is_idle(self) -> bool:
        """Whether there is no request, and nothing in flight."""
        lanes = self._replica.lanes
        return not self._replica.requests and all(lane.in_flight.is_empty for lane in lanes)

    @property
    def is_attached(self) -> bool:
        """Whether all ranks have attached and HostMemory, if any, has said if there is an L3."""
        replica = self._replica
        knows_host = not self.settings.has_host_memory or replica.host.has_storage is not None
        return knows_host and all(group.is_attached for group in replica.step_groups)

    @property
    def is_backed_up(self) -> bool:
        """Whether no page waits for its copy to L2; True if HostMemory is not usable."""
        return not self._replica.host.is_usable or not any(
            len(lane.backups) for lane in self._replica.lanes
        )

    def explain(self, request_id: RequestId) -> dict[str, Any] | None:
        """Explain where a recent request's prompt came from, by token range; None if unknown."""
        return self._replica.explanations.find(request_id)

    def stats(self) -> dict[str, Any]:
        """Counters (they only grow), distributions and gauges, by name."""
        replica = self._replica
        by_rank = [lane.figures_by_rank() for lane in replica.lanes]
        stats: dict[str, Any] = {**self._counted(), **replica.timings.figures()}
        stats[BY_RANK] = [figures for ranks in by_rank for figures in ranks]

        num_loading = sum(lane.num_loading for lane in replica.lanes)
        num_running = sum(len(lane.running) for lane in replica.lanes) - num_loading
        stats["num_requests_running"] = num_running
        stats["num_requests_loading"] = num_loading
        stats["num_requests_waiting"] = replica.num_waiting

        stats |= self._l1_figures()
        stats["l2_known_pages"] = replica.host.num_keys
        groups = range(self.settings.num_groups)
        stats["l2_granted_pages"] = sum(map(replica.host.num_granted, groups))
        stats["leases_wanted"] = len(replica.host.leases)
        stats["lookups_open"] = len(replica.lookups)
        stats["lookups_due"] = replica.lookups.num_queued
        stats["l2_claimed_pages"] = replica.lookups.num_claimed_pages

        stats["transfers_in_flight"] = sum(len(lane.in_flight.transfers) for lane in replica.lanes)
        stats["dirty_pages"] = sum(len(lane.backups) for lane in replica.lanes)
        stats["ranks_attached"] = sum(len(group.attached) for group in replica.step_groups)
        # Only one group can share experts: it has all ranks.
        for group in replica.step_groups:
            if group.experts is not None:
                stats |= group.experts.figures(self._now_s)
        return stats

    def _counted(self) -> dict[str, float]:
        """The counters of the engine and of its lanes, added up."""
        replica = self._replica
        total: Counter[str] = Counter()
        for counters in (replica.counters, *(lane.counters for lane in replica.lanes)):
            total.update(counters.figures())
        copy_s = sum(lane.copy_s for lane in replica.lanes)
        return {**total, Duration.COPY.value: copy_s}

    def _l1_figures(self) -> dict[str, int]:
        """Pages of L1 by state, per KV group and in all."""
        figures: Counter[str] = Counter()
        for lane in self._replica.lanes:
            for name, pages in lane.l1.figures().items():
                # Of this KV group, then of all groups together.
                figures[name] += pages
                figures[name.rpartition("_")[0]] += pages
        for group in range(self.settings.num_groups):
            # 0: its layers look back over everything.
            figures[f"kv_group_window_tokens_{group}"] = (
                self.settings.layout.groups[group].window or 0
            )
        return dict(figures)

    def check(self) -> None:
        """Raise AccountingError, with the figures, unless every invariant holds."""
        replica = self._replica
        for lane in replica.lanes:
            lane.check()
        for group in replica.step_groups:
            group.check([lane.l1.last_step for lane in replica.lanes_of(group)])
        self._check_states()
        waiting = {name for lane in replica.lanes for name in lane.waiting.requests}
        running = [name for lane in replica.lanes for name in lane.running]
        placed = [*running, *waiting, *replica.unplaced]
        if sorted(placed) != sorted(replica.requests):
            raise AccountingError(
                f"{len(replica.requests)} requests live, {len(placed)} are on a lane"
            )
        replica.lookups.check(waiting | replica.unplaced.keys())
        replica.orphans.check(running=set(running), waiting=waiting | replica.unplaced.keys())
        for group in replica.step_groups:
            if group.experts is not None:
                group.experts.check()

        if self.is_idle and replica.lookups.num_claimed_pages:
            raise AccountingError(
                f"the engine is idle, but {replica.lookups.num_claimed_pages} pages are claimed"
            )
        if self.is_idle and any(lane.l1.tree.num_locks for lane in replica.lanes):
            raise AccountingError("the engine is idle, but pages are locked")

    def _check_states(self) -> None:
        """Raise AccountingError unless each request is with the owner that its state names."""
        replica = self._replica
        require_states("nobody", replica.unplaced.values(), {State.PLACING})
        for lane in replica.lanes:
            decoding = [one for one in lane.running.values() if one.batch is not None]
            require_states("a queue", lane.waiting.requests.values(), {State.WAITING})
            require_states("a lane", lane.prefilling.values(), PREPARING)
            require_states("a batch", decoding, {State.DECODING})

    def _take(self, event: Event, now_s: float) -> None:
        replica = self._replica
        match event:
            case events.ClientMessage():
                self._on_client(event, now_s)
            case events.ClientGone():
                self._on_client_gone(event)
            case events.RankAttached():
                on_rank_attached(replica, event)
            case events.RankMessage():
                on_rank_message(replica, event, now_s)
            case events.RankLost():
                on_rank_lost(replica, event)
            case events.HostAttached():
                on_host_attached(replica, event.connection)
            case events.HostMessage():
                if event.connection == replica.host.connection:
                    on_host_message(replica, event.message)
            case events.HostLost():
                if event.connection == replica.host.connection:
                    on_host_lost(replica)
            case events.ExpertsPlanned():
                on_experts_planned(replica, event)
            case events.FlushL1():
                self._flush.start(now_s)
            case events.RefuseRequests():
                replica.close()
            case events.EndRequests():
                text = "the engine was shut down before the request had ended."
                for request in list(replica.requests.values()):
                    replica.fail(request, FailureKind.ENGINE_DEAD, text)
            case events.BackUpL1():
                for lane in replica.lanes:
                    lane.backups.add_all(lane.l1.tree)
            case events.Tick():
                # Only a tick looks at the clock: all that was said until then has been taken
                # before it, so nobody counts as late who has answered.
                replica.pieces.advance()
                self._expire(now_s)
                time_out_host(replica, now_s)
                condemn_late_ranks(replica, now_s)
            case _:
                assert_never(event)

    def _watch_host(self, now_s: float) -> None:
        """Be woken when HostMemory's next answer is late. Of all that it owes the first is enough.

        Should no other event come, that one also starts the clocks of what this one has asked.
        """
        host = self._replica.host
        oldest_s = host.unanswered.oldest_s(now_s)
        if oldest_s is None:
            return
        due_s = oldest_s + self.settings.lookup_deadline_s
        # Once it is late the tick that tells so is due already.
        if due_s > now_s and host.alarm.advance(due_s, now_s):
            self._replica.wake_at(due_s)

    def _on_client(self, event: events.ClientMessage, now_s: float) -> None:
        replica = self._replica
        match event.message:
            case SubmitRequest():
                submit(replica, event.client_id, event.message, now_s)
            case PrefetchPrompt():
                submit_hint(replica, event.client_id, event.message)
            case AbortRequest() | StopRequest():
                self._end_asking(event.client_id, event.message)
            case _:
                assert_never(event.message)

    def _end_asking(self, client_id: ClientId, message: AbortRequest | StopRequest) -> None:
        """End a request or hint, unless the client means an earlier one of this name."""
        replica = self._replica
        asked = client_id, message.asking
        hint = replica.hints.get(message.request_id)
        if hint is not None and (hint.client_id, hint.asking) == asked:
            abort_hint(replica, hint)
        request = replica.requests.get(message.request_id)
        if request is not None and (request.client_id, request.submit.asking) == asked:
            is_stop = isinstance(message, StopRequest)
            reason = FinishReason.STOP if is_stop else FinishReason.ABORT
            replica.send_tokens(request, empty(), (), reason)
            replica.finish(request, reason)

    def _on_client_gone(self, event: events.ClientGone) -> None:
        """End a client's requests piece by piece."""
        self._replica.orphan(event.client_id)
        drop_hints(self._replica, event.client_id)

    def _expire(self, now_s: float) -> None:
        """End requests whose deadline has passed, and look again at those that waited until now."""
        replica = self._replica
        for entry in replica.timers.take_due(now_s, _MAX_DUE):
            request = None if entry is None else replica.requests.get(entry[0])
            # The name may belong to a later request by now.
            if entry is None or request is None or request.serial != entry[1]:
                continue

            if request.deadline_s is not None and request.deadline_s <= now_s:
                text = (
                    f"deadline_s of {request.submit.deadline_s:g} passed after "
                    f"{request.num_output} output tokens."
                )
                replica.fail(request, FailureKind.DEADLINE_EXCEEDED, text)
            else:
                replica.lanes[request.lane].waiting.wake(request)
