"""How the Scheduler lives with HostMemory: its reports, its silence, its death."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import assert_never

import numpy as np

from raydix.ids import ConnectionId, LeaseId, LookupId
from raydix.runtime.cache.page_pools import PageIds, join_columns, num_pages_of, pages_between
from raydix.runtime.messages.arrays import Int32Array
from raydix.runtime.messages.host import (
    AbandonPages,
    CopiesDrained,
    FromHost,
    LookupProgress,
    MirrorUpdate,
    PagesGranted,
    PagesLeased,
    PageSource,
    ProcessDrained,
    StorageStatus,
)
from raydix.runtime.scheduler.admission import start_running
from raydix.runtime.scheduler.counters import Count
from raydix.runtime.scheduler.hints import end_hint
from raydix.runtime.scheduler.host_view import LeaseWanted
from raydix.runtime.scheduler.lane import Lane
from raydix.runtime.scheduler.prefetch_hint import PrefetchHint
from raydix.runtime.scheduler.replica import Replica
from raydix.runtime.scheduler.request import RequestState
from raydix.runtime.scheduler.transfers import Backup, Load

_NARROWED_FRACTION = 0.125
"""A claim on room in L2 is narrowed once at least this fraction of it is not needed any more."""
_FREED_KEYS = 64
"""The number of keys of a lost HostMemory that are freed as one item of a piece of work."""


def on_host_attached(replica: Replica, connection: ConnectionId) -> None:
    """HostMemory is there, new or again. Grants and leases of an earlier connection are void."""
    if replica.host.connection is not None:
        on_host_lost(replica)
    replica.host.attach(connection)
    for lane in replica.lanes:
        lane.backups.note_new_host()


def on_host_lost(replica: Replica) -> None:
    """Go on without L2: nothing waits for it any more. Copies in flight are still acknowledged."""
    replica.counters.count(Count.LOST_HOSTS)
    for lease_id in list(replica.host.leases):
        _give_up_lease(replica, lease_id)
    former = replica.forget_lookups()
    mirrors = replica.host.detach()

    for lane in replica.lanes:
        lane.backups.note_lost_host()
    _wake_all(replica)

    for asker in former.askers():
        asker.prefetch.give_up(PageSource.IO_ERROR)
        asker.prefetch.close()
        if isinstance(asker, PrefetchHint):
            end_hint(replica, asker, PageSource.IO_ERROR)
    # To free thousands of chains at once would take tens of ms, and so would a million keys.
    replica.pieces.add(len, former.chains())
    parts = [(mirror,) for mirror in mirrors for _ in range(0, len(mirror), _FREED_KEYS)]
    replica.pieces.add(_free_some, parts)


def _free_some(part: tuple[set[bytes]]) -> None:
    (keys,) = part
    for _ in range(min(_FREED_KEYS, len(keys))):
        keys.pop()


def _wake_all(replica: Replica) -> None:
    """Give every request that waits on a lane its turn again, as something has changed for all."""
    for lane in replica.lanes:
        # Whoever comes to another lane before its piece is looked at there anyway.
        replica.pieces.add(lane.waiting.wake, lane.waiting.requests.values())


def tell_if_drained(replica: Replica) -> None:
    """Tell HostMemory to grant pages, once no copy of an earlier connection is in flight."""
    host = replica.host
    # A rank says hello once its copies have ended: one that is missing may still be copying.
    if (
        host.connection is None
        or host.is_drained
        or not all(group.is_attached for group in replica.step_groups)
    ):
        return
    transfers = (
        transfer for lane in replica.lanes for transfer in lane.in_flight.transfers.values()
    )
    if any(transfer.host_connection != host.connection for transfer in transfers):
        return

    host.note_drained()
    # A rank may have said hello while no HostMemory was attached: tell this one that it lives.
    for group in replica.step_groups:
        for rank in group.attached.values():
            replica.tell_host(ProcessDrained(pid=rank.pid))
    replica.tell_host(CopiesDrained())


def on_host_message(replica: Replica, message: FromHost) -> None:
    """Take a report of the HostMemory that is attached."""
    replica.host.hear()

    match message:
        case PagesGranted():
            replica.host.stock(message)
        case MirrorUpdate():
            ready, dropped = replica.host.mirror(message)
            for lane in replica.lanes:
                lane.waiting.pages_came(ready)
                lane.backups.note_dropped(dropped)
        case StorageStatus():
            replica.host.note_storage(message)
            replica.lookups.set_room(_room_for_lookups(replica, message))
            _wake_all(replica)
        case LookupProgress():
            _on_lookup_progress(replica, message)
        case PagesLeased():
            _on_leased(replica, message)
        case _:
            assert_never(message)


def _on_lookup_progress(replica: Replica, report: LookupProgress) -> None:
    asker = replica.lookups.find(report.lookup_id)
    if asker is None:
        return
    replica.host.unanswered.discard(report.lookup_id)
    asker.prefetch.report(report)
    if report.is_final:
        replica.lookups.close(report.lookup_id)

    if isinstance(asker, RequestState):
        _narrow_claim(replica, asker)
        if report.is_final:
            _repeat_lookup(replica, asker)
        replica.lanes[asker.lane].waiting.wake(asker)
    elif report.is_final:
        end_hint(replica, asker, PageSource.CANCELLED)


def _repeat_lookup(replica: Replica, request: RequestState) -> None:
    """If L2 had no room for pages that L3 may have, look them up once more, in their turn.

    If nobody else makes room, the request does: what it has brought goes on to L1 first.
    """
    prefetch = request.prefetch
    if not prefetch.count(PageSource.NO_HOST_PAGE) or request.request_id in replica.unplaced:
        return
    keys = request.chain.short_keys(prefetch.pages(PageSource.L3, PageSource.NO_HOST_PAGE))
    place = replica.lanes[request.lane].waiting.key(request)
    if replica.lookups.enqueue_again(request, keys, place):
        prefetch.make_due_again()
        replica.counters.count(Count.REPEATED_LOOKUPS)
    else:
        prefetch.halt()


def _narrow_claim(replica: Replica, request: RequestState) -> None:
    """Narrow a request's claim to what L3 has brought or may still bring it."""
    prefetch = request.prefetch
    claimed = (PageSource.PENDING, PageSource.L3)
    num_claimed = replica.lookups.num_claimed_by(request)
    # Not for every single page: narrowing costs time in proportion to the chain.
    if num_claimed and prefetch.count(*claimed) <= (1 - _NARROWED_FRACTION) * num_claimed:
        keys = request.chain.short_keys(prefetch.pages(*claimed))
        replica.lookups.narrow_claim(request, keys)


def _room_for_lookups(replica: Replica, status: StorageStatus) -> int:
    """Pages of chains that L2 keeps room for: each takes one in every FULL group."""
    pairs = zip(status.max_staged_pages, replica.settings.reaches, strict=True)
    full = [num_pages for num_pages, reach in pairs if reach is None]
    return min(full or status.max_staged_pages)


def _on_leased(replica: Replica, message: PagesLeased) -> None:
    wanted = replica.host.take_lease(message.lease_id)
    connection = replica.host.connection
    assert connection is not None, "only an attached HostMemory answers"
    copies = None if wanted is None else _copies_of_lease(replica, wanted, message)
    if wanted is None or copies is None:
        replica.release_lease(message.lease_id, connection)
        return

    lane = replica.lanes[wanted.request.lane]
    load = Load(
        transfer_id=lane.in_flight.new_transfer_id(),
        page_ids=copies.page_ids,
        host_page_ids=copies.host_page_ids,
        generations=copies.generations,
        host_connection=connection,
        lease_id=message.lease_id,
        request_id=wanted.request.request_id,
    )
    if wanted.promotion is not None:
        lane.promotions.wait_for_load(wanted.promotion, load)
    else:
        wanted.request.wait_for_load(load)
    lane.in_flight.add_load(load)


@dataclass(frozen=True, slots=True)
class _LeasedCopies:
    """Copies that a lease allows: per KV group, GPU pages and the host pages to load them from."""

    page_ids: PageIds
    host_page_ids: PageIds
    generations: PageIds


def _copies_of_lease(
    replica: Replica, wanted: LeaseWanted, message: PagesLeased
) -> _LeasedCopies | None:
    """The copies that a lease is used for; None if it is empty, or nobody waits for it any more.

    The request of a lease for a run runs from now on; a promotion without pages ends.
    """
    request, promotion = wanted.request, wanted.promotion
    if promotion is None:
        return _run_with_leased(replica, request, message) if wanted.is_current else None
    if promotion.lease_id != message.lease_id:
        return None

    num_leased = num_pages_of(message.host_page_ids)
    if not num_leased:
        replica.lanes[request.lane].promotions.drop_part(promotion)
        return None
    page_ids = pages_between(promotion.part, 0, num_leased)
    return _LeasedCopies(page_ids, message.host_page_ids, message.generations)


def _run_with_leased(
    replica: Replica, request: RequestState, message: PagesLeased
) -> _LeasedCopies | None:
    """Let a request that waited for its lease run, on what was leased; returns the copies."""
    loads = request.start.loads
    wanted = [request.start.num_pages - pages[0] if pages else 0 for pages in loads]
    leased = [len(ids) for ids in message.host_page_ids]
    if wanted != leased:
        return _run_with_fewer(replica, request, message)

    start_running(replica, request, request.start)
    return _LeasedCopies(
        request.table.at(loads),
        tuple(map(_pick, message.host_page_ids, loads)),
        tuple(map(_pick, message.generations, loads)),
    )


def _pick(column: Int32Array, pages: Sequence[int]) -> Int32Array:
    """The entries of these pages in a column of a leased run, which begins with the first."""
    return column[np.asarray(pages, dtype=np.intp) - pages[0]] if len(pages) else column[:0]


def _run_with_fewer(
    replica: Replica, request: RequestState, message: PagesLeased | None
) -> _LeasedCopies | None:
    """L2 has dropped pages in the meantime, or is gone: the request begins behind fewer of them.

    GPU pages that were kept for those go back. Where there are windows it is looked at anew, for
    the leased run may end where no window does.
    """
    if replica.settings.has_windows:
        replica.requeue(request)
        return None

    held = request.num_held_pages
    num_leased = 0 if message is None else num_pages_of(message.host_page_ids)
    start = request.shorten_start(held + num_leased)
    replica.lanes[request.lane].cut_table(request, start.num_pages)
    start_running(replica, request, start)
    if message is None or not num_leased:
        return None
    page_ids = request.table.pages(held, start.num_pages)
    return _LeasedCopies(page_ids, message.host_page_ids, message.generations)


def _give_up_lease(replica: Replica, lease_id: LeaseId) -> None:
    """Give up a lease that HostMemory will not grant any more, or grants too late."""
    wanted = replica.host.take_lease(lease_id)
    assert wanted is not None, "only a lease that is wanted is given up"
    if wanted.promotion is not None:
        if wanted.promotion.lease_id == lease_id:
            replica.lanes[wanted.request.lane].promotions.drop_part(wanted.promotion)
    elif wanted.is_current:
        _run_with_fewer(replica, wanted.request, None)


def time_out_host(replica: Replica, now_s: float) -> None:
    """Past its deadline HostMemory counts as silent: there is no L2 until it is heard again."""
    late = replica.host.unanswered.note_overdue(replica.settings.lookup_deadline_s, now_s)
    if not late:
        return
    replica.counters.count(Count.HOST_SILENCES)
    replica.host.fall_silent()

    replica.pieces.add(partial(_give_up_question, replica), late)
    _wake_all(replica)


def _give_up_question(replica: Replica, question: LeaseId | LookupId) -> None:
    """Give up waiting for the answer to this question, unless it has come meanwhile."""
    if not replica.host.unanswered.give_up(question):
        return
    if question in replica.host.leases:
        _give_up_lease(replica, LeaseId(question))
    asker = replica.lookups.find(LookupId(question))
    if asker is not None:
        asker.prefetch.give_up(PageSource.IO_ERROR)
        replica.cancel_lookup(asker)
    if isinstance(asker, PrefetchHint):
        # Storage may never have been asked, so the reason is not that it was late.
        end_hint(replica, asker, PageSource.IO_ERROR)
    elif asker is not None:
        # HostMemory may have been heard again, and the request waited on, since all were woken.
        replica.lanes[asker.lane].waiting.wake(asker)


def abandon_transfers(replica: Replica, lane: Lane) -> None:
    """Give up the transfers of a lane whose step group has lost a rank, and which starts over.

    Until they exit or say hello, the lane's processes may still copy host pages.
    """
    backups = [t for t in lane.in_flight.transfers.values() if isinstance(t, Backup)]
    loads = [t for t in lane.in_flight.transfers.values() if isinstance(t, Load)]
    current = replica.host.connection
    lost_backups = [backup for backup in backups if backup.host_connection == current]
    lost_leases = [load.lease_id for load in loads if load.host_connection == current]

    if lost_backups or lost_leases:
        # The columns are of all KV groups together: a host page's id tells its group.
        replica.tell_host(
            AbandonPages(
                host_page_ids=join_columns([backup.host_page_ids for backup in lost_backups]),
                generations=join_columns([backup.generations for backup in lost_backups]),
                lease_ids=tuple(lost_leases),
                pids=lane.pids,
            )
        )
