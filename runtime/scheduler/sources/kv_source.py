"""The node's L2, and what it fetches for us: what is asked for, and what has been said."""

import itertools
from collections.abc import Iterable, Sequence

from raydix.ids import (
    L3_SOURCE,
    ConnectionId,
    LeaseId,
    LookupId,
    RequestId,
    SourceId,
)
from raydix.runtime.cache.page_key import ChainKeys
from raydix.runtime.cache.radix_tree import Match
from raydix.runtime.messages.host import (
    BROUGHT,
    CancelLookup,
    CopiesDrained,
    LeasePages,
    Lookup,
    LookupProgress,
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
from raydix.runtime.scheduler.request.prefetch_hint import PrefetchHint
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.request.request_order import OrderKey
from raydix.runtime.scheduler.request.transfers import Backup, Load, Promotion, abandonment
from raydix.runtime.scheduler.request.users import user_of
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.sources.cached_prefix import CachedPrefix, ends_in_l1, find_prefix
from raydix.runtime.scheduler.sources.host_view import HostView
from raydix.runtime.scheduler.sources.lease_wanted import LeaseWanted
from raydix.runtime.scheduler.sources.lookups import Asker, Lookups, LostSource, Unanswered
from raydix.runtime.scheduler.sources.origins import Origins
from raydix.runtime.scheduler.timers import Alarm

_NARROWED_FRACTION = 0.125
"""A claim on room in L2 is narrowed once at least this fraction of it is not needed any more."""


class KvSource:
    """Owns: what HostMemory was asked for: by whom, since when, and what is asked next.

    `view` is what it has said: which pages it has, and which of them backups may fill.
    """

    def __init__(self, settings: SchedulerSettings, outbox: Outbox, counters: Counters) -> None:
        self._settings, self._outbox, self._counters = settings, outbox, counters
        self.view = HostView(settings.num_groups)
        self.origins = Origins(settings.num_groups)
        """Where L2 can fetch what it lacks."""
        self.leases: dict[LeaseId, LeaseWanted] = {}
        """Leases that were asked for and not yet answered, by lease id."""
        self._lookups = Lookups()
        self._unanswered: Unanswered[LeaseId | LookupId] = Unanswered()
        """Leases and lookups that were asked for and have not been answered yet."""
        self._alarm = Alarm()
        """The alarm for the time at which the next unanswered question is late."""
        self._ids = itertools.count(1)
        self._now_s = 0.0
        """The time of the present event."""

    def find_prefix(
        self, request: RequestState, match: Match, most_pages: int | None = None
    ) -> CachedPrefix:
        """What L1, where it matches `match`, and L2 hold of a request or of its first pages."""
        view = self.view
        is_useful = view.is_usable and len(view.keys) > 0 and self._settings.prefix_caching
        max_pages = request.max_cached_tokens // self._settings.page_size
        max_pages = min(max_pages, self._settings.reusable_pages(request.num_tokens))
        max_pages = max_pages if most_pages is None else min(max_pages, most_pages)
        return find_prefix(
            self._settings,
            view.keys if is_useful else None,
            match,
            ChainKeys(request.chain.keys(max_pages) if is_useful else b""),
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
            **self.origins.figures(),
            "l2_known_pages": len(self.view.keys),
            "l2_granted_pages": sum(map(self.view.num_granted, groups)),
            "leases_wanted": len(self.leases),
            "lookups_open": len(self._lookups),
            "lookups_due": self._lookups.num_queued,
            "l2_claimed_pages": self._lookups.num_claimed_pages,
        }

    def lose(self) -> LostSource:
        """Note that HostMemory is gone: nothing that it was asked for will come.

        Its wanted leases have been given up.
        """
        # Replaced rather than emptied: thousands of lookups are freed later, piece by piece.
        former, self._lookups = self._lookups, Lookups()
        mirrors = self.view.detach() + self.origins.lose_peers()
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

    def note_storage(self, status: StorageStatus) -> None:
        """Take what HostMemory says of L3, and how much of L2 it keeps for what L3 brings."""
        self.view.note_storage(status)
        # Of chains: each page takes one in every FULL group.
        pairs = zip(status.max_staged_pages, self._settings.reaches, strict=True)
        full = [num_pages for num_pages, reach in pairs if reach is None]
        self._lookups.set_room(min(full or status.max_staged_pages))

    def start_clocks(self, now_s: float) -> None:
        """Note that what was asked with earlier events has been sent by now."""
        self._now_s = now_s
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
        asker: RequestState | Promotion,
        starts: Sequence[int],
        stop: int,
    ) -> LeaseId:
        """Ask for host pages, of each KV group from its start up to `stop`.

        They are for a promotion, or for a request's run.
        """
        lease_id = LeaseId(next(self._ids))
        run = asker.run if isinstance(asker, RequestState) else None
        self.leases[lease_id] = LeaseWanted(asker=asker, run=run)
        self._unanswered.add(lease_id)
        first = min(starts)
        keys = asker.chain.keys(stop, first)
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
        if lost:
            self.tell(abandonment(lost, pids))

    def want_lookup(
        self, request: RequestState, found: CachedPrefix, place: OrderKey, source: SourceId
    ) -> None:
        """Have a waiting request looked up at a source: at once, or in turn if that may have it."""
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
        request.prefetch.make_due(ends, num_full, source)
        lacking = range(found.num_known_pages, num_full)
        if lacking and self.may_have(source, len(lacking)):
            self._lookups.enqueue(request, request.chain.short_keys(lacking), place)
        else:
            self.send_lookup(request, found.match, Urgency.REQUEST)

    def may_have(self, source: SourceId, num_pages: int) -> bool:
        """Whether a source may bring so many pages that L2 lacks."""
        if source != L3_SOURCE:
            return self.origins.find(source) is not None
        is_asked = num_pages * self._settings.page_size >= self.view.min_l3_tokens
        return is_asked and self.view.has_storage is not False

    def want_lookup_elsewhere(
        self, request: RequestState, found: CachedPrefix, place: OrderKey, source: SourceId
    ) -> None:
        """Look a request up once more, at another source, for what has not come."""
        num_full = self._settings.reusable_pages(request.num_prompt)
        lacking = range(found.num_known_pages, num_full)
        self._lookups.end_claim(request)
        self._lookups.enqueue(request, request.chain.short_keys(lacking), place)
        request.prefetch.make_due_elsewhere(source)
        self._counters.count(Count.REPEATED_LOOKUPS)

    def want_lookup_again(
        self, request: RequestState, of: Sequence[PageSource], place: OrderKey
    ) -> None:
        """Look a request up once more, for pages of which its last lookup reported one `of`."""
        keys = request.chain.short_keys(request.prefetch.pages(*of))
        self._lookups.end_claim(request)
        self._lookups.enqueue(request, keys, place)
        request.prefetch.make_due_again()
        self._counters.count(Count.REPEATED_LOOKUPS)

    def want_lost_pages(self, request: RequestState, place: OrderKey) -> None:
        """Look a request up once more, as L2 has lost what had been brought for it."""
        request.prefetch.note_loss()
        self.want_lookup_again(request, BROUGHT, place)

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
            num_brought_pages=asker.prefetch.count(*BROUGHT),
            source=asker.prefetch.fetch_from,
            urgency=urgency,
            user=user_of(asker) if isinstance(asker, RequestState) else asker.user,
            pin=asker.pin if isinstance(asker, PrefetchHint) else None,
        )
        self.tell(message)
        if earlier_id is not None:
            # What that one brought is kept for this one from now on.
            self.tell(CancelLookup(lookup_id=earlier_id))

    def report(self, report: LookupProgress) -> Asker | None:
        """Take what HostMemory reports of a lookup; returns whose it is, None if nobody's."""
        if report.is_final:
            # Also if it runs by now and wants no more: as a rule it does before this is told.
            self.origins.learn(report, self._settings, self._now_s)
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
        claimed = (PageSource.PENDING, *BROUGHT)
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
        keys = request.chain.short_keys(prefetch.pages(*BROUGHT, PageSource.NO_HOST_PAGE))
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
