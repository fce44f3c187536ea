"""A place outside L1 that has pages: what it is asked for, and what it has said."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from raydix.ids import SEVERAL_USERS, ConnectionId, LeaseId, LookupId, PageKey, RequestId
from raydix.runtime.cache.page_pools import join_columns
from raydix.runtime.cache.radix_tree import Match
from raydix.runtime.messages.host import (
    AbandonPages,
    CancelLookup,
    CopiesDrained,
    LeasePages,
    Lookup,
    LookupProgress,
    MirrorUpdate,
    PagesGranted,
    PageSource,
    ProcessDrained,
    ReleaseLeases,
    StorageStatus,
    ToHost,
    Urgency,
)
from raydix.runtime.scheduler.counters import Count, Counters
from raydix.runtime.scheduler.events import SendHost
from raydix.runtime.scheduler.outbox import Outbox
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.request.request_order import OrderKey
from raydix.runtime.scheduler.request.transfers import Backup, Load, Promotion
from raydix.runtime.scheduler.request.users import user_of
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.sources.cached_prefix import CachedPrefix, ends_in_l1, find_prefix
from raydix.runtime.scheduler.sources.claims import Pages
from raydix.runtime.scheduler.sources.host_view import HostView
from raydix.runtime.scheduler.sources.lease_wanted import LeaseWanted
from raydix.runtime.scheduler.sources.lookups import Asker, Lookups, Unanswered
from raydix.runtime.scheduler.timers import Alarm

_NARROWED_FRACTION = 0.125
"""A claim on room in L2 is narrowed once at least this fraction of it is not needed any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostSource:
    """What there was of a source that is gone."""

    askers: list[Asker]
    """The askers whose lookups were open or due."""
    chains: list[Pages]
    """Pages that were claimed, or would have been: to free thousands at once takes tens of ms."""
    mirrors: list[set[bytes]]
    """Its keys, per KV group: to free a million at once takes 40 ms."""


class KvSource:
    """Owns: what HostMemory was asked for: by whom, since when, and what is asked next.

    `view` is what it has said: which pages it has, and which of them backups may fill.
    """

    def __init__(self, settings: SchedulerSettings, outbox: Outbox, counters: Counters) -> None:
        self._settings, self._outbox, self._counters = settings, outbox, counters
        self.view = HostView(settings.num_groups)
        self.leases: dict[LeaseId, LeaseWanted] = {}
        """Leases that were asked for and not yet answered, by lease id."""
        self._lookups = Lookups()
        self._unanswered: Unanswered[LeaseId | LookupId] = Unanswered()
        """Leases and lookups that were asked for and have not been answered yet."""
        self._alarm = Alarm()
        """The alarm for the time at which the next unanswered question is late."""
        self._ids = itertools.count(1)

    def find_prefix(
        self, request: RequestState, match: Match, most_pages: int | None = None
    ) -> CachedPrefix:
        """What L1, where it matches `match`, and L2 hold of a request or of its first pages."""
        view = self.view
        is_useful = view.is_usable and view.num_keys > 0 and self._settings.prefix_caching
        max_pages = request.max_cached_tokens // self._settings.page_size
        max_pages = min(max_pages, self._settings.reusable_pages(request.num_tokens))
        max_pages = max_pages if most_pages is None else min(max_pages, most_pages)
        return find_prefix(
            self._settings,
            view if is_useful else None,
            match,
            request.chain.keys(max_pages) if is_useful else b"",
            max_pages=max_pages,
        )

    @property
    def num_unanswered(self) -> int:
        """The number of questions that are not answered yet."""
        return len(self._unanswered)

    def figures(self) -> dict[str, int]:
        """What is known of L2, and what it is asked for."""
        groups = range(self._settings.num_groups)
        return {
            "l2_known_pages": self.view.num_keys,
            "l2_granted_pages": sum(map(self.view.num_granted, groups)),
            "leases_wanted": len(self.leases),
            "lookups_open": len(self._lookups),
            "lookups_due": self._lookups.num_queued,
            "l2_claimed_pages": self._lookups.num_claimed_pages,
        }

    def attach(self, connection: ConnectionId) -> None:
        """Note that HostMemory is there, which was lost before if it was there already."""
        self.view.attach(connection)

    def lose(self) -> LostSource:
        """Note that HostMemory is gone: nothing that it was asked for will come.

        Its wanted leases have been given up.
        """
        # Replaced rather than emptied: thousands of lookups are freed later, piece by piece.
        former, self._lookups = self._lookups, Lookups()
        mirrors = self.view.detach()
        self.leases.clear()
        self._unanswered.clear()
        askers = former.askers()
        for asker in askers:
            asker.prefetch.give_up(PageSource.IO_ERROR)
            asker.prefetch.close()
        return LostSource(askers=askers, chains=former.chains(), mirrors=mirrors)

    def tell(self, message: ToHost) -> None:
        """Queue a message to HostMemory, if it is attached."""
        if self.view.connection is not None:
            self._outbox.emit(SendHost(connection=self.view.connection, message=message))

    def tell_drained(self, pids: Iterable[int]) -> None:
        """Tell HostMemory to grant pages: no copy of these processes is of an earlier link."""
        self.view.note_drained()
        for pid in pids:
            self.tell(ProcessDrained(pid=pid))
        self.tell(CopiesDrained())

    def hear(self) -> None:
        """Note that HostMemory has said something."""
        self.view.hear()

    def stock(self, grant: PagesGranted) -> None:
        """Take granted free host pages, for backups."""
        self.view.stock(grant)

    def mirror(self, update: MirrorUpdate) -> tuple[list[PageKey], list[PageKey]]:
        """Follow L2's changes; returns short keys of what became READY and was dropped."""
        return self.view.mirror(update)

    def note_storage(self, status: StorageStatus) -> None:
        """Take what HostMemory says of L3, and how much of L2 it keeps for what L3 brings."""
        self.view.note_storage(status)
        # Of chains: each page takes one in every FULL group.
        pairs = zip(status.max_staged_pages, self._settings.reaches, strict=True)
        full = [num_pages for num_pages, reach in pairs if reach is None]
        self._lookups.set_room(min(full or status.max_staged_pages))

    def start_clocks(self, now_s: float) -> None:
        """Note that what was asked with earlier events has been sent by now."""
        self._unanswered.start_clocks(now_s)

    def next_late_s(self, now_s: float) -> float | None:
        """A time at which to be woken, as the first answer is late then; None: at none.

        Of all that it owes the first is enough. Should no other event come, that one also starts
        the clocks of what this one has asked.
        """
        oldest_s = self._unanswered.oldest_s(now_s)
        if oldest_s is None:
            return None
        due_s = oldest_s + self._settings.lookup_deadline_s
        # Once it is late the tick that tells so is due already.
        return due_s if due_s > now_s and self._alarm.advance(due_s, now_s) else None

    def take_late(self, now_s: float) -> list[LeaseId | LookupId]:
        """Take out the questions whose answers are late; then HostMemory counts as silent.

        There is no L2 until it is heard again.
        """
        late = self._unanswered.note_overdue(self._settings.lookup_deadline_s, now_s)
        if late:
            self.view.fall_silent()
        return late

    def give_up(self, question: LeaseId | LookupId) -> bool:
        """Give up waiting for an answer that is late; False if it has come meanwhile."""
        return self._unanswered.give_up(question)

    def ask_lease(
        self,
        request: RequestState,
        starts: Sequence[int],
        stop: int,
        promotion: Promotion | None = None,
    ) -> LeaseId:
        """Ask for host pages, of each KV group from its start up to `stop`.

        They are for a request's promotion, or for its run.
        """
        lease_id = LeaseId(next(self._ids))
        self.leases[lease_id] = LeaseWanted(request=request, run=request.run, promotion=promotion)
        self._unanswered.add(lease_id)
        first = min(starts)
        keys = request.chain.keys(stop, first)
        counted = tuple([start - first for start in starts])
        self.tell(LeasePages(lease_id=lease_id, keys=keys, starts=counted))
        return lease_id

    def take_lease(self, lease_id: LeaseId) -> LeaseWanted | None:
        """Take out a lease that is answered or given up; returns who wanted it, or None."""
        self._unanswered.discard(lease_id)
        return self.leases.pop(lease_id, None)

    def release_lease(self, lease_id: LeaseId, connection: ConnectionId) -> None:
        """Give a lease back over the connection that granted it, if that is still there."""
        if connection == self.view.connection:
            self.tell(ReleaseLeases(lease_ids=(lease_id,)))

    def abandon(self, transfers: Iterable[Load | Backup], pids: tuple[int, ...]) -> None:
        """Give up copies that these processes may still be making until they exit or say hello."""
        # Pages of an earlier connection are in quarantine since it broke.
        lost = [each for each in transfers if each.host_connection == self.view.connection]
        backups = [each for each in lost if isinstance(each, Backup)]
        leases = [each.lease_id for each in lost if isinstance(each, Load)]
        if backups or leases:
            # The columns are of all KV groups together: a host page's id tells its group.
            message = AbandonPages(
                host_page_ids=join_columns([backup.host_page_ids for backup in backups]),
                generations=join_columns([backup.generations for backup in backups]),
                lease_ids=tuple(leases),
                pids=pids,
            )
            self.tell(message)

    def want_lookup(self, request: RequestState, found: CachedPrefix, place: OrderKey) -> None:
        """Have a waiting request looked up: at once, or in its turn if L3 may have some of it."""
        request.renew_prefetch()
        num_groups = self._settings.num_groups
        num_full = self._settings.reusable_pages(request.num_prompt)
        if request.must_score:
            request.prefetch.rule_out(PageSource.PROMPT_LOGPROBS, num_full, num_groups=num_groups)
            return
        if not self._settings.prefix_caching or not num_full:
            return
        if not self.view.is_usable:
            if self._settings.has_host_memory:
                request.prefetch.rule_out(PageSource.IO_ERROR, num_full, num_groups=num_groups)
            return

        ends = ends_in_l1(self._settings, found.match, num_full)
        request.prefetch.make_due(ends, num_full)
        lacking = range(found.num_known_pages, num_full)
        is_asked = len(lacking) * self._settings.page_size >= self.view.min_l3_tokens
        if lacking and is_asked and self.view.has_storage is not False:
            self._lookups.enqueue(request, request.chain.short_keys(lacking), place)
        else:
            self.send_lookup(request, found.match, Urgency.REQUEST)

    def want_lookup_again(self, request: RequestState, of: PageSource, place: OrderKey) -> None:
        """Look a request up once more, for the pages of which its last lookup reported `of`."""
        keys = request.chain.short_keys(request.prefetch.pages(of))
        self._lookups.end_claim(request)
        self._lookups.enqueue(request, keys, place)
        request.prefetch.make_due_again()
        self._counters.count(Count.REPEATED_LOOKUPS)

    def want_lost_pages(self, request: RequestState, place: OrderKey) -> None:
        """Look a request up once more, as L2 has lost what L3 had brought for it."""
        request.prefetch.note_loss()
        self.want_lookup_again(request, PageSource.L3, place)

    def move_lookup(self, request: RequestState, place: OrderKey) -> None:
        """Move the due lookup, if any, of a waiting request that has got another place."""
        self._lookups.move(request, place)

    def next_to_look_up(self) -> RequestState | None:
        """Take out a request whose turn it is, while L2 has room for what L3 may bring."""
        return self._lookups.next_to_send() if self.view.is_usable else None

    def send_lookup(self, asker: Asker, match: Match, urgency: Urgency) -> None:
        """Ask HostMemory for the chain of a request or hint, of which L1 holds `match`."""
        num_full = self._settings.reusable_pages(asker.chain.num_prompt)
        num_l1_pages = ends_in_l1(self._settings, match, num_full)
        lookup_id, earlier_id = LookupId(next(self._ids)), asker.prefetch.lookup_id
        asker.prefetch.open(lookup_id, num_l1_pages, num_full)
        self._lookups.open(lookup_id, asker)
        self._unanswered.add(lookup_id)
        message = Lookup(
            lookup_id=lookup_id,
            keys=asker.chain.keys(num_full),
            num_l1_pages=num_l1_pages,
            num_brought_pages=asker.prefetch.count(PageSource.L3),
            urgency=urgency,
            user=user_of(asker) if isinstance(asker, RequestState) else SEVERAL_USERS,
        )
        self.tell(message)
        if earlier_id is not None:
            # What that one brought is kept for this one from now on.
            self.tell(CancelLookup(lookup_id=earlier_id))

    def report(self, report: LookupProgress) -> Asker | None:
        """Take what HostMemory reports of a lookup; returns whose it is, None if nobody's."""
        asker = self._lookups.find(report.lookup_id)
        if asker is None:
            return None
        self._unanswered.discard(report.lookup_id)
        asker.prefetch.report(report)
        if report.is_final:
            self._lookups.close(report.lookup_id)
        if isinstance(asker, RequestState):
            self._narrow_claim(asker)
        return asker

    def _narrow_claim(self, request: RequestState) -> None:
        """Narrow a request's claim to what L3 has brought or may still bring it."""
        prefetch = request.prefetch
        claimed = (PageSource.PENDING, PageSource.L3)
        num_claimed = self._lookups.num_claimed_by(request)
        # Not for every single page: narrowing costs time in proportion to the chain.
        if num_claimed and prefetch.count(*claimed) <= (1 - _NARROWED_FRACTION) * num_claimed:
            keys = request.chain.short_keys(prefetch.pages(*claimed))
            self._lookups.narrow_claim(request, keys)

    def repeat_lookup(self, request: RequestState, place: OrderKey) -> None:
        """Look pages up once more, in their turn, that L3 may have and L2 had no room for.

        If nobody else makes room, the request does: what it has brought goes on to L1 first.
        """
        prefetch = request.prefetch
        if not prefetch.count(PageSource.NO_HOST_PAGE):
            return
        keys = request.chain.short_keys(prefetch.pages(PageSource.L3, PageSource.NO_HOST_PAGE))
        if self._lookups.enqueue_again(request, keys, place):
            prefetch.make_due_again()
            self._counters.count(Count.REPEATED_LOOKUPS)
        else:
            prefetch.halt()

    def cancel_lookup(self, asker: Asker) -> None:
        """Cancel a lookup for which nobody waits; pages that it brought are kept no longer.

        What a request claims of L2 stays claimed.
        """
        lookup_id = asker.prefetch.lookup_id
        if lookup_id is not None:
            self._lookups.close(lookup_id)
            self._unanswered.discard(lookup_id)
            if asker.prefetch.holds_staged_pages:
                self.tell(CancelLookup(lookup_id=lookup_id))
        self._lookups.withdraw(asker)
        asker.prefetch.close()

    def give_up_lookup(self, lookup_id: LookupId) -> Asker | None:
        """Give up a lookup whose answer is late; returns for whom it was, None if for nobody."""
        asker = self._lookups.find(lookup_id)
        if asker is not None:
            asker.prefetch.give_up(PageSource.IO_ERROR)
            self.cancel_lookup(asker)
        return asker

    def end_claim(self, request: RequestState) -> None:
        """End the claim of a request that has loaded what L3 brought, or wants it no more."""
        self._lookups.end_claim(request)

    def forget(self, request: RequestState) -> None:
        """Ask no more for a request: its lookup and its claim end."""
        self.cancel_lookup(request)
        self._lookups.end_claim(request)

    def check(self, waiting: set[RequestId]) -> None:
        """Raise AccountingError unless the claims add up and only those that wait are due."""
        self._lookups.check(waiting)

    @property
    def num_claimed_pages(self) -> int:
        """Pages of L2 that are kept for what open and answered lookups bring from L3."""
        return self._lookups.num_claimed_pages
