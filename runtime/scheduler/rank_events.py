"""How the Scheduler lives with GPU actors: their hellos, reports, silence and end."""

from typing import assert_never

from raydix.runtime.messages.client import FailureKind
from raydix.runtime.messages.host import ProcessDrained
from raydix.runtime.messages.plan import StepResult, TransfersDone
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.counters import Count
from raydix.runtime.scheduler.events import KillCause, KillRank
from raydix.runtime.scheduler.expert_events import on_expert_step
from raydix.runtime.scheduler.host_messages import abandon_transfers
from raydix.runtime.scheduler.lane import Lane
from raydix.runtime.scheduler.replica import Replica
from raydix.runtime.scheduler.request import MAX_LOSSES, RequestState
from raydix.runtime.scheduler.request_order import order_key
from raydix.runtime.scheduler.results import on_step_result, on_transfers_done
from raydix.runtime.scheduler.step_group import AttachedRank, StepGroup
from raydix.runtime.scheduler.waiting import Place

_PATIENCE = 10
"""A step or copy is late once it has taken this many times as long as predicted."""
_Due = tuple[float, str, set[int]]
"""The time at which something is due, its name, and the ranks that owe it."""


def on_rank_attached(replica: Replica, event: events.RankAttached) -> None:
    """Take in a GPU actor that says hello."""
    group = replica.group_of_rank(event.rank)
    if event.rank in group.attached:
        lose_rank(replica, event.rank)
    if not _admit_to_group(replica, group, event):
        return
    attached = AttachedRank(
        connection=event.connection, incarnation=event.incarnation, pid=event.pid
    )
    group.attach(event.rank, attached)
    replica.tell_host(ProcessDrained(pid=event.pid))

    # Whoever waits on a lane without ranks can be served here.
    if group.is_attached:
        for other in replica.lanes:
            if not other.is_attached:
                replica.displace(other.start_over())


def _admit_to_group(replica: Replica, group: StepGroup, event: events.RankAttached) -> bool:
    """Let a rank step with its step group, which loses an older incarnation of its ranks.

    Ranks of a group are restarted together, so all that step together are of one incarnation.
    False: they have a newer one than this rank, which is ended.
    """
    if len(group.ranks) == 1:
        return True
    for rank, attached in list(group.attached.items()):
        if attached.incarnation < event.incarnation:
            # The end of that incarnation went unnoticed, perhaps while the Scheduler was down.
            lose_rank(replica, rank)
            break

    if event.incarnation < group.min_incarnation():
        _end_rank(replica, event.rank, event.incarnation, "its group has a newer incarnation")
        return False
    return True


def _is_current(replica: Replica, event: events.RankMessage | events.RankLost) -> bool:
    """Whether the event belongs to the link by which its rank is attached."""
    attached = replica.group_of_rank(event.rank).attached.get(event.rank)
    return attached is not None and attached.connection == event.connection


def on_rank_message(replica: Replica, event: events.RankMessage, now_s: float) -> None:
    """Take a report of a GPU actor."""
    if not _is_current(replica, event):
        return
    lane, group = replica.lane_of_rank(event.rank), replica.group_of_rank(event.rank)
    match event.message:
        case StepResult():
            on_step_result(replica, lane, event.message, now_s)
            on_expert_step(replica, group, event.message)
        case TransfersDone():
            on_transfers_done(replica, lane, event.message, now_s)
        case _:
            assert_never(event.message)


def on_rank_lost(replica: Replica, event: events.RankLost) -> None:
    """Note that a GPU actor's link has closed."""
    if _is_current(replica, event):
        lose_rank(replica, event.rank)


def lose_rank(replica: Replica, rank: int) -> None:
    """Forget a rank that is gone, and with it L1 of each lane that steps with it.

    The requests of these lanes wait again, with their tokens.
    """
    group = replica.group_of_rank(rank)
    lanes = replica.lanes_of(group)
    replica.counters.count(Count.LOST_RANKS)
    for lane in lanes:
        abandon_transfers(replica, lane)
    displaced: list[Place] = []
    for lane in lanes:
        for request in list(lane.running.values()):
            if not _fails(replica, request):
                displaced.append(_displace(replica, lane, request))

    if len(group.ranks) > 1:
        _end_group(replica, group, rank)
    group.lose_ranks()
    displaced += [place for lane in lanes for place in lane.start_over()]
    replica.displace(displaced)


def _displace(replica: Replica, lane: Lane, request: RequestState) -> Place:
    """Let a request wait again, with its tokens; returns its place among those that wait.

    Nothing is given back, and no page published: what the lane had of it goes as a whole.
    """
    key = order_key(request, replica.settings, request.num_held_pages)
    replica.lookups.end_claim(request)
    if request.batch is not None:
        request.batch.leave(request)
    request.stop_running()
    replica.orphans.stopped_running(request.request_id)
    return key, request


def _fails(replica: Replica, request: RequestState) -> bool:
    """End a request if it seems to be what ends the ranks that it runs on.

    After `MAX_LOSSES` losses it is a suspect. Suspects run one at a time, so one more loss is its
    own doing.
    """
    request.note_loss()
    if request.num_losses > MAX_LOSSES:
        text = (
            f"{request.num_losses} GPU actors were lost while it ran, the last time "
            f"beside no other suspect."
        )
        replica.fail(request, FailureKind.ENGINE_DEAD, text)
        return True
    return False


def _end_group(replica: Replica, group: StepGroup, lost_rank: int) -> None:
    """End all ranks of a step group, for they can only meet anew together.

    That includes the lost one if only its link broke: it would say hello again without the others.
    """
    for rank, attached in group.attached.items():
        reason = f"rank {lost_rank} of its group was lost"
        _end_rank(replica, rank, attached.incarnation, reason)
    group.end_incarnation()


def _end_rank(replica: Replica, rank: int, incarnation: int, reason: str) -> None:
    cause = KillCause.GROUP_BROKEN
    replica.emit(KillRank(rank=rank, incarnation=incarnation, cause=cause, reason=reason))


def condemn_late_ranks(replica: Replica, now_s: float) -> None:
    """End ranks that take too long over the oldest step of their step group, or over a copy."""
    for group in replica.step_groups:
        lanes = [lane for lane in replica.lanes_of(group) if not lane.in_flight.is_empty]
        if lanes:
            _condemn_late_ranks_of(replica, group, lanes, now_s)


def _condemn_late_ranks_of(
    replica: Replica, group: StepGroup, lanes: list[Lane], now_s: float
) -> None:
    settings = replica.settings
    deadline_s = settings.step_deadline_s if group.is_warm else settings.first_step_deadline_s
    due_s, what, ranks = min(_dues(replica, lanes, deadline_s, now_s), key=lambda due: due[0])
    is_late = due_s <= now_s

    # A rank that is condemned now may not end, and the deadline becomes shorter when the first step
    # has ended: look again after a while in both cases.
    look_again_s = now_s + settings.step_deadline_s
    if group.is_warm and not is_late:
        look_again_s = due_s
    if group.alarm.advance(look_again_s, now_s):
        replica.wake_at(look_again_s)

    for rank in sorted(ranks) if is_late else ():
        incarnation = group.attached[rank].incarnation
        reason = f"{what} has not been acknowledged; it was due {now_s - due_s:.1f} s ago"
        cause = KillCause.LATE
        replica.emit(KillRank(rank=rank, incarnation=incarnation, cause=cause, reason=reason))


def _dues(replica: Replica, lanes: list[Lane], deadline_s: float, now_s: float) -> list[_Due]:
    """The times at which a step group's oldest step and each lane's oldest copy are due.

    A prediction only makes the wait longer than the deadline that is set: one that is too short
    condemns nobody. One that is too long is corrected by the next quick step or load.
    """
    dues: list[_Due] = []
    oldest = [step for lane in lanes if (step := lane.in_flight.oldest_step) is not None]
    if oldest:
        # A lane that has done this step waits in the next one, which begins when all lanes have.
        number = min([step.step for step in oldest])
        steps = [step for step in oldest if step.step == number]
        predicted_s = replica.prefill_rate.predict_s(steps[0].most_tokens, now_s)
        started_s = max([step.started_s for step in steps])
        ranks = {rank for step in steps for rank in step.waiting_ranks}
        patience_s = max(deadline_s, _PATIENCE * predicted_s)
        # A step that waits for a load has not begun: only the load can be late.
        if not any(step.loads for step in steps):
            dues.append((started_s + patience_s, f"step {number}", ranks))

    for lane in lanes:
        copy = lane.in_flight.oldest_transfer
        if copy is not None and copy.first_s is not None:
            # A rank makes its copies one after the other: the oldest is the one that has begun.
            predicted_s = replica.load_rate.predict_s(
                replica.bytes_of(map(len, copy.page_ids)), now_s
            )
            patience_s = max(deadline_s, _PATIENCE * predicted_s)
            what = f"transfer {copy.transfer_id}"
            dues.append((copy.first_s + patience_s, what, copy.waiting_ranks))
    return dues
