"""The Scheduler's brain: a state machine without I/O, events in and effects out."""

from collections import Counter
from typing import assert_never

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
from raydix.runtime.messages.host import ProcessDrained
from raydix.runtime.messages.plan import StepResult, TransfersDone
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.counters import Count
from raydix.runtime.scheduler.events import Effect, Event, KillCause, KillRank, SendPlan
from raydix.runtime.scheduler.hints import abort_hint, drop_hints, take_hint
from raydix.runtime.scheduler.host_messages import (
    abandon_transfers,
    on_host_attached,
    on_host_lost,
    on_host_message,
    tell_if_drained,
    time_out_host,
)
from raydix.runtime.scheduler.lane import AttachedRank, Lane
from raydix.runtime.scheduler.planning import next_plan
from raydix.runtime.scheduler.replica import Replica
from raydix.runtime.scheduler.request import MAX_LOSSES
from raydix.runtime.scheduler.results import on_step_result, on_transfers_done
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.submission import enqueue_hashed, move_waiting, submit

_PATIENCE = 10
"""A step may take so many times as long as predicted."""


class SchedulerCore:
    """Decides about L1 and the requests of one replica. Events come in order of `now_s`."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings
        self._replica = Replica(settings)

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Take one event; the effects are to be carried out in order."""
        replica = self._replica
        if replica.host.unanswered.start_clocks(now_s):
            replica.wake_at(now_s + self.settings.lookup_deadline_s)

        self._take(event, now_s)
        enqueue_hashed(replica, now_s)
        replica.send_due_lookups()
        tell_if_drained(replica)
        if replica.host.unanswered.has_new:
            # Should no other event come, this one starts their clocks.
            replica.wake_at(now_s + self.settings.lookup_deadline_s)

        for lane in replica.lanes:
            while (plan := next_plan(replica, lane, now_s)) is not None:
                replica.emit(SendPlan(lane=lane.index, connections=lane.connections, plan=plan))
        return replica.take_effects()

    def next_deadline_s(self) -> float | None:
        """When a `Tick` is due if no other event comes before; None: never."""
        return self._replica.timers.next_s()

    @property
    def is_idle(self) -> bool:
        """No request, and nothing in flight."""
        lanes = self._replica.lanes
        return not self._replica.requests and all(lane.in_flight.is_empty for lane in lanes)

    @property
    def is_attached(self) -> bool:
        """Every rank is there, and HostMemory, if any, has said whether there is an L3."""
        replica = self._replica
        knows_host = not self.settings.has_host_memory or replica.host.has_storage is not None
        return knows_host and all(lane.is_attached for lane in replica.lanes)

    @property
    def is_backed_up(self) -> bool:
        """No page waits for its copy to L2. Without a usable HostMemory it would wait in vain."""
        return not self._replica.host.is_usable or not any(
            len(lane.backups) for lane in self._replica.lanes
        )

    def explain(self, request_id: RequestId) -> dict[str, object] | None:
        """Where a recent request's prompt came from, by token range; None if unknown."""
        return self._replica.explained.get(request_id)

    def stats(self) -> dict[str, float]:
        """Counters (they only grow) and gauges, by name."""
        replica = self._replica
        stats = replica.counters.figures()
        stats["num_requests_running"] = sum(len(lane.running) for lane in replica.lanes)
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
        stats["ranks_attached"] = sum(len(lane.attached) for lane in replica.lanes)
        return stats

    def _l1_figures(self) -> dict[str, float]:
        """Pages of L1 by state, per KV group and in all."""
        lanes = self._replica.lanes
        figures: Counter[str] = Counter()
        for group in range(self.settings.num_groups):
            pools = [lane.l1.pools.group(group) for lane in lanes]
            pages = {
                "total": sum(pool.num_pages for pool in pools),
                "used": sum(pool.num_used for pool in pools),
                "cached": sum(lane.l1.tree.num_cached_pages(group) for lane in lanes),
                "locked": sum(lane.l1.tree.num_locked_pages(group) for lane in lanes),
            }
            figures.update({f"l1_{state}_pages": count for state, count in pages.items()})
            figures.update({f"l1_{state}_pages_{group}": count for state, count in pages.items()})
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
        waiting = {name for lane in replica.lanes for name in lane.waiting.requests}
        running = [name for lane in replica.lanes for name in lane.running]
        placed = [*running, *waiting, *replica.hashing]
        if sorted(placed) != sorted(replica.requests):
            raise AccountingError(
                f"{len(replica.requests)} requests live, {len(placed)} are on a lane"
            )
        replica.lookups.check(waiting)

        if self.is_idle and replica.lookups.num_claimed_pages:
            raise AccountingError(
                f"the engine is idle, but {replica.lookups.num_claimed_pages} pages are claimed"
            )
        if self.is_idle and any(lane.l1.tree.num_locks for lane in replica.lanes):
            raise AccountingError("the engine is idle, but pages are locked")

    def _take(self, event: Event, now_s: float) -> None:
        replica = self._replica
        match event:
            case events.ClientMessage():
                self._on_client(event, now_s)
            case events.ClientGone():
                self._on_client_gone(event)
            case events.RankAttached():
                self._on_rank_attached(event, now_s)
            case events.RankMessage():
                self._on_rank(event, now_s)
            case events.RankLost():
                if self._is_current(event):
                    self._lose_rank(event.rank, now_s)
            case events.HostAttached():
                on_host_attached(replica, event.connection)
            case events.HostMessage():
                if event.connection == replica.host.connection:
                    on_host_message(replica, event.message, now_s)
            case events.HostLost():
                if event.connection == replica.host.connection:
                    on_host_lost(replica)
            case events.FlushL1():
                for lane in replica.lanes:
                    lane.l1.flush()
            case events.BackUpL1():
                for lane in replica.lanes:
                    lane.backups.add_all(lane.l1.tree)
            case events.Tick():
                # Only a tick looks at the clock: all that was said until then has been taken
                # before it, so nobody counts as late who has answered.
                self._expire(now_s)
                self._judge_silence(now_s)
            case _:
                assert_never(event)

    def _on_client(self, event: events.ClientMessage, now_s: float) -> None:
        replica = self._replica
        match event.message:
            case SubmitRequest():
                submit(replica, event.client_id, event.message, now_s)
            case PrefetchPrompt():
                take_hint(replica, event.client_id, event.message)
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
        replica = self._replica
        requests = [r for r in replica.requests.values() if r.client_id == event.client_id]
        for request in requests:
            replica.drop(request)
        drop_hints(replica, event.client_id)

    def _on_rank_attached(self, event: events.RankAttached, now_s: float) -> None:
        replica = self._replica
        lane = replica.lanes[event.rank // self.settings.ranks_per_lane]
        if event.rank in lane.attached:
            self._lose_rank(event.rank, now_s)
        if not self._joins_generation(lane, event, now_s):
            return
        attached = AttachedRank(
            connection=event.connection, incarnation=event.incarnation, pid=event.pid
        )
        lane.attach(event.rank, attached)
        replica.tell_host(ProcessDrained(pid=event.pid))

        # Whoever waits on a lane without ranks can be served here.
        for other in replica.lanes:
            if lane.is_attached and not other.is_attached:
                move_waiting(replica, other, now_s)

    def _joins_generation(self, lane: Lane, event: events.RankAttached, now_s: float) -> bool:
        """Whether a rank is of the newest generation of its lane. Those of others are ended.

        Incarnations of a lane's ranks go in step: the larger number is the newer generation.
        """
        if self.settings.ranks_per_lane == 1:
            return True
        for rank, attached in list(lane.attached.items()):
            if attached.incarnation < event.incarnation:
                # Its death was never heard of, perhaps because the Scheduler was dead, too.
                self._lose_rank(rank, now_s)
                break

        if event.incarnation < lane.oldest_generation():
            self._end_rank(event.rank, event.incarnation, "its generation is over")
            return False
        return True

    def _is_current(self, event: events.RankMessage | events.RankLost) -> bool:
        """The event belongs to the link by which its rank is attached."""
        attached = self._replica.lanes[event.rank // self.settings.ranks_per_lane].attached.get(
            event.rank
        )
        return attached is not None and attached.connection == event.connection

    def _on_rank(self, event: events.RankMessage, now_s: float) -> None:
        lane = self._replica.lanes[event.rank // self.settings.ranks_per_lane]
        if not self._is_current(event):
            return
        match event.message:
            case StepResult():
                on_step_result(self._replica, lane, event.message, now_s)
            case TransfersDone():
                on_transfers_done(self._replica, lane, event.message, now_s)
            case _:
                assert_never(event.message)

    def _lose_rank(self, rank: int, now_s: float) -> None:
        """A rank is gone and its lane's L1 with it: its requests wait again, with their tokens."""
        replica = self._replica
        lane = replica.lanes[rank // self.settings.ranks_per_lane]
        replica.counters.count(Count.LOST_RANKS)
        abandon_transfers(replica, lane)

        # A request that ends every rank it runs on must not do so for ever. Suspects run one at a
        # time, so the last loss can be nobody else's doing.
        for request in list(lane.running.values()):
            request.note_loss()
            if request.num_losses > MAX_LOSSES:
                text = (
                    f"{request.num_losses} GPU actors were lost while it ran, the last time "
                    f"beside no other suspect."
                )
                replica.fail(request, FailureKind.ENGINE_DEAD, text)
            else:
                replica.requeue(request)

        if self.settings.ranks_per_lane > 1:
            self._end_group(lane, rank)
        lane.lose_ranks()
        move_waiting(replica, lane, now_s)

    def _end_group(self, lane: Lane, lost_rank: int) -> None:
        """End all ranks of a lane, the lost one too if only its link broke: all meet anew or none.

        One rank alone, its link broken, would just say hello again.
        """
        for rank, attached in lane.attached.items():
            self._end_rank(rank, attached.incarnation, f"rank {lost_rank} of its group was lost")
        lane.end_generation()

    def _end_rank(self, rank: int, incarnation: int, reason: str) -> None:
        cause = KillCause.GROUP_BROKEN
        self._replica.emit(KillRank(rank=rank, incarnation=incarnation, cause=cause, reason=reason))

    def _expire(self, now_s: float) -> None:
        """End requests whose deadline has passed, and look again at those that waited until now."""
        replica = self._replica
        for entry in replica.timers.take_due(now_s):
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

    def _judge_silence(self, now_s: float) -> None:
        """Who owes an answer for too long counts as silent, or as dead."""
        replica = self._replica
        time_out_host(replica, now_s)
        for lane in replica.lanes:
            if not lane.in_flight.is_empty:
                self._condemn_late_ranks(lane, now_s)

    def _condemn_late_ranks(self, lane: Lane, now_s: float) -> None:
        """End the ranks that take too long over the oldest step or copy of their lane.

        Before a lane's first step they may take for ever: kernels are compiled and graphs captured.
        """
        replica = self._replica
        due_s, what, ranks = self._next_due(lane, now_s)
        is_late = lane.is_warm and due_s <= now_s

        # Ranks that are condemned now, or may take for ever, are looked at again after a while.
        look_again_s = now_s + self.settings.step_deadline_s
        if lane.is_warm and not is_late:
            look_again_s = due_s
        if lane.alarm.advance(look_again_s, now_s):
            replica.wake_at(look_again_s)

        for rank in sorted(ranks) if is_late else ():
            incarnation = lane.attached[rank].incarnation
            reason = f"{what} has not been acknowledged; it was due {now_s - due_s:.1f} s ago"
            kill = KillRank(rank=rank, incarnation=incarnation, cause=KillCause.LATE, reason=reason)
            replica.emit(kill)

    def _next_due(self, lane: Lane, now_s: float) -> tuple[float, str, set[int]]:
        """Of a lane's oldest step and oldest copy the one due first: when, its name, its ranks."""
        dues: list[tuple[float, str, set[int]]] = []
        step, copy = lane.in_flight.oldest_step, lane.in_flight.oldest_transfer
        if step is not None:
            predicted_s = self._replica.prefill_rate.predict_s(step.num_tokens, now_s)
            patience_s = max(self.settings.step_deadline_s, _PATIENCE * predicted_s)
            dues.append((step.started_s + patience_s, f"step {step.step}", step.waiting_ranks))
        if copy is not None and copy.sent_s is not None:
            due_s = copy.sent_s + self.settings.step_deadline_s
            dues.append((due_s, f"transfer {copy.transfer_id}", copy.waiting_ranks))
        return min(dues, key=lambda due: due[0])
