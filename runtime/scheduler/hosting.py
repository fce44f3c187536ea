"""How the Scheduler lives with HostMemory: its reports, its silence, its death."""

from typing import assert_never

import numpy as np

from raydix.ids import LeaseId
from raydix.runtime.messages.arrays import Int32Array, empty, int32_array
from raydix.runtime.messages.host import (
    AbandonPages,
    FromHost,
    LookupProgress,
    MirrorUpdate,
    PagesGranted,
    PagesLeased,
    PageSource,
    StorageStatus,
)
from raydix.runtime.scheduler.admission import start_running
from raydix.runtime.scheduler.hints import end_hint
from raydix.runtime.scheduler.lane import Lane
from raydix.runtime.scheduler.promotion import lease_part, promotion_of_lease
from raydix.runtime.scheduler.replica import Replica
from raydix.runtime.scheduler.request import Phase, RequestState
from raydix.runtime.scheduler.transfers import Backup, Load


def on_host_attached(replica: Replica, incarnation: int) -> None:
    """A new HostMemory is there. What an older one granted or leased is void."""
    if replica.host.incarnation is not None:
        on_host_lost(replica)
    replica.host.attach(incarnation)


def on_host_lost(replica: Replica) -> None:
    """Go on without L2: nothing waits for it any more. Copies in flight go on and are acknowledged as ever."""
    unanswered = list(replica.host.leases)
    replica.counters["lost_hosts"] += 1
    for lease_id in unanswered:
        _give_up_lease(replica, lease_id)
    replica.host.detach()
    for lane in replica.lanes:
        lane.dirty.clear()
        unsent, lane.ready_loads = lane.ready_loads, []
        for load in unsent:
            request = replica.requests.get(load.request_id)
            promotion = lane.promotions.get(load.request_id)
            if promotion is not None and promotion.load is load:
                lane.drop_part(promotion)
            elif request is not None and request.load is load:
                replica.requeue(request)
        for request in lane.waiting.values():
            request.prefetch.is_final = True
            request.prefetch.asked_s = None
    for hint in [hint for hint in replica.hints.values() if not hint.prefetch.is_final]:
        end_hint(replica, hint, PageSource.IO_ERROR)


def tell_if_drained(replica: Replica) -> None:
    """Once no older copy is in flight on any lane, a new HostMemory may grant pages."""
    if replica.host.incarnation is None:
        return
    is_copying = any(
        transfer.host_incarnation != replica.host.incarnation
        for lane in replica.lanes
        for transfer in lane.transfers.values()
    )
    # A rank says hello when its copies have ended, so a missing rank may still be copying.
    are_attached = all(lane.is_attached for lane in replica.lanes)
    drained = replica.host.drained(is_copying or not are_attached)
    if drained is not None:
        replica.tell_host(drained)


def on_host_message(replica: Replica, message: FromHost, now_s: float) -> None:
    """Take a report of the HostMemory that is attached."""
    replica.host.is_silent = False
    match message:
        case PagesGranted():
            replica.host.stock(message)
        case MirrorUpdate():
            replica.host.mirror(message)
        case StorageStatus():
            replica.host.has_storage = message.is_in_use
        case LookupProgress():
            is_current = replica.host.is_current(message)
            hint = replica.hints.get(message.request_id)
            request = hint or replica.requests.get(message.request_id)
            if is_current and request is not None and not request.prefetch.is_final:
                request.prefetch.sources = message.sources
                request.prefetch.has_report = True
                request.prefetch.is_final = message.is_final
                request.prefetch.asked_s = None
                if hint is not None and message.is_final:
                    end_hint(replica, hint, PageSource.CANCELLED)
        case PagesLeased():
            _on_leased(replica, message)
        case _:
            assert_never(message)


def _on_leased(replica: Replica, message: PagesLeased) -> None:
    wanted = replica.host.leases.pop(message.lease_id, None)
    incarnation = replica.host.incarnation
    assert incarnation is not None, "only an attached HostMemory answers"
    request = None if wanted is None else replica.requests.get(wanted.request_id)
    if wanted is None or request is None:
        replica.release_lease(message.lease_id, incarnation)
        return
    lane = replica.lanes[request.lane]
    promotion = promotion_of_lease(replica, request, message.lease_id)
    page_ids = empty()
    if promotion is not None:
        page_ids = promotion.part[: len(message.host_page_ids)]
    elif request.run == wanted.run and request.phase is Phase.LEASING:
        page_ids = _keep_leased_pages(replica, request, len(message.host_page_ids))
        start_running(replica, request, num_loaded_pages=len(page_ids), num_left_pages=0)
    if not len(page_ids):
        replica.release_lease(message.lease_id, incarnation)
        if promotion is not None:
            lane.drop_part(promotion)
        return
    load = Load(
        transfer_id=replica.next_transfer_id(),
        page_ids=page_ids,
        host_page_ids=message.host_page_ids,
        generations=message.generations,
        host_incarnation=incarnation,
        lease_id=message.lease_id,
        request_id=request.request_id,
    )
    if promotion is not None:
        lease_part(lane, promotion, load)
    else:
        request.load = load
        lane.ready_loads.append(load)


def _keep_leased_pages(replica: Replica, request: RequestState, num_leased: int) -> Int32Array:
    """GPU pages for what was leased; those reserved for what L2 has dropped in the meantime go back."""
    lane = replica.lanes[request.lane]
    end = request.num_held_pages + num_leased
    surplus = request.table[end:]
    if surplus:
        lane.pool.release(int32_array(surplus), after_step=lane.last_step)
        del request.table[end:]
    return int32_array(request.table[request.num_held_pages : end])


def _give_up_lease(replica: Replica, lease_id: LeaseId) -> None:
    wanted = replica.host.leases.pop(lease_id)
    request = replica.requests.get(wanted.request_id)
    if request is None:
        return
    promotion = promotion_of_lease(replica, request, lease_id)
    if promotion is not None:
        replica.lanes[request.lane].drop_part(promotion)
    elif request.run == wanted.run and request.phase is Phase.LEASING:
        _keep_leased_pages(replica, request, 0)
        start_running(replica, request, num_loaded_pages=0, num_left_pages=0)


def time_out_host(replica: Replica, now_s: float) -> None:
    """Past its deadline HostMemory counts as silent: the engine runs as if it had no L2 until it is heard again."""
    patience_s = replica.settings.lookup_deadline_s
    late_leases = replica.host.overdue_leases(patience_s, now_s)
    waiting = [request for lane in replica.lanes for request in lane.waiting.values()]
    late_lookups = [
        request
        for request in (*waiting, *replica.hints.values())
        if request.prefetch.asked_s is not None and request.prefetch.asked_s + patience_s <= now_s
    ]
    if not late_leases and not late_lookups:
        return
    replica.counters["host_silences"] += 1
    replica.host.is_silent = True
    for lease_id in late_leases:
        _give_up_lease(replica, lease_id)
    for request in late_lookups:
        replica.cancel_lookup(request)
        if request.request_id in replica.hints:
            end_hint(replica, request, PageSource.TIMED_OUT)


def abandon_transfers(replica: Replica, lane: Lane, *, pid: int) -> None:
    """A rank died: the host pages that it may still be copying stay untouched until its process has exited."""
    backups = [t for t in lane.transfers.values() if isinstance(t, Backup)]
    loads = [t for t in lane.transfers.values() if isinstance(t, Load)]
    current = replica.host.incarnation
    lost_backups = [backup for backup in backups if backup.host_incarnation == current]
    lost_leases = [load.lease_id for load in loads if load.host_incarnation == current]
    for load in lane.ready_loads:
        replica.release_lease(load.lease_id, load.host_incarnation)
    if lost_backups or lost_leases:
        replica.tell_host(
            AbandonPages(
                host_page_ids=_joined([backup.host_page_ids for backup in lost_backups]),
                generations=_joined([backup.generations for backup in lost_backups]),
                lease_ids=int32_array(lost_leases),
                pid=pid,
            )
        )


def _joined(columns: list[Int32Array]) -> Int32Array:
    return int32_array(np.concatenate(columns)) if columns else empty()
