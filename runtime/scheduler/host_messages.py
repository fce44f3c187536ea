"""How the Scheduler lives with HostMemory: its reports, its silence, its death."""

from collections.abc import Sequence
from typing import assert_never

from raydix.ids import L2_SOURCE, L3_SOURCE, LeaseId, LookupId
from raydix.runtime.messages.host import (
    FromHost,
    LookupProgress,
    PagesGranted,
    PagesLeased,
    PageSource,
    StorageStatus,
)
from raydix.runtime.messages.kv_events import Tier, TierCleared
from raydix.runtime.messages.mirror import MirrorCleared, MirrorUpdate, PeerFound, PeerGone
from raydix.runtime.scheduler.counters import Count, Counters
from raydix.runtime.scheduler.events import HostAttached, HostLost, HostMessage
from raydix.runtime.scheduler.life.hints import Hints
from raydix.runtime.scheduler.life.leases import LeaseAnswers
from raydix.runtime.scheduler.life.requests import Requests
from raydix.runtime.scheduler.life.transitions import Transitions
from raydix.runtime.scheduler.page_news import PageNews
from raydix.runtime.scheduler.pieces import Pieces
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.ranks.step_group import StepGroup
from raydix.runtime.scheduler.request.prefetch_hint import PrefetchHint
from raydix.runtime.scheduler.sources.host_view import HostView
from raydix.runtime.scheduler.sources.kv_source import KvSource
from raydix.runtime.scheduler.sources.mirror import Mirror

_FREED_KEYS = 64
"""The number of keys of a lost HostMemory that are freed as one item of a piece of work."""


class HostMessages:
    """Takes in what HostMemory says, its silence and its death."""

    def __init__(
        self,
        *,
        requests: Requests,
        lanes: Sequence[Lane],
        step_groups: Sequence[StepGroup],
        source: KvSource,
        leases: LeaseAnswers,
        hints: Hints,
        life: Transitions,
        pieces: Pieces,
        counters: Counters,
        news: PageNews,
    ) -> None:
        self._requests = requests
        self._lanes = lanes
        self._step_groups = step_groups
        self._source = source
        self._leases = leases
        self._hints = hints
        self._life = life
        self._pieces = pieces
        self._counters = counters
        self._news = news

    def hear(self, event: HostAttached | HostMessage | HostLost, now_s: float) -> None:
        """Take what has come over HostMemory's link; what an earlier link still brings is void."""
        match event:
            case HostAttached():
                self.attach(event)
            case HostMessage() if event.connection == self._source.view.connection:
                self.take(event.message, now_s)
            case HostLost() if event.connection == self._source.view.connection:
                self.lose()

    def attach(self, event: HostAttached) -> None:
        """HostMemory is there, new or again. What an earlier connection brought is void."""
        if self._source.view.connection is not None:
            self.lose()
        self._source.view.attach(event.connection, event.l2)
        for lane in self._lanes:
            lane.backups.note_new_host()

    def lose(self) -> None:
        """Go on without L2: nothing waits for it. Copies in flight are still acknowledged."""
        self._counters.count(Count.LOST_HOSTS)
        # Before the source forgets them: requests that wait for a lease run on what L1 has.
        for lease_id in list(self._source.leases):
            self._leases.give_up(lease_id)
        for tier, mirror in _mirrors(self._source.view).items():
            self._clear(tier, mirror)
        lost = self._source.lose()

        for lane in self._lanes:
            lane.backups.note_lost_host()
        self._wake_all()

        for asker in lost.askers:
            if isinstance(asker, PrefetchHint):
                self._hints.end(asker, PageSource.IO_ERROR)
        self._free_later(lost.chains, lost.mirrors)

    def _free_later(self, chains: Sequence[Sequence[bytes]], mirrors: Sequence[set[bytes]]) -> None:
        """Free what there was of a HostMemory: thousands of chains or a million keys take long."""
        self._pieces.add(len, chains)
        parts = [(mirror,) for mirror in mirrors for _ in range(0, len(mirror), _FREED_KEYS)]
        self._pieces.add(_free_some, parts)

    def _wake_all(self) -> None:
        """Give every request that waits on a lane its turn again: something has changed for all."""
        for lane in self._lanes:
            # Whoever comes to another lane before its piece is looked at there anyway.
            self._pieces.add(lane.waiting.wake, lane.waiting.requests.values())

    def tell_if_drained(self, *, is_asleep: bool) -> None:
        """Tell HostMemory to grant pages, once no copy of an earlier connection is in flight."""
        view = self._source.view
        if view.connection is None or view.is_drained:
            return
        # A rank says hello once its copies have ended: one that is missing may still be copying.
        # Those of an engine that sleeps copied nothing when they left.
        if not is_asleep and not all(group.is_attached for group in self._step_groups):
            return
        # Of an earlier connection there may still be copies in flight, or leased and about to be.
        # They touch host pages that a new grant must not hand out.
        flights = [lane.in_flight for lane in self._lanes]
        if any(
            copy.host_connection != view.connection
            for flight in flights
            for copy in (*flight.transfers.values(), *flight.ready_loads)
        ):
            return

        # A rank may have said hello while no HostMemory was attached: tell this one that it lives.
        pids = [
            rank.pid for step_group in self._step_groups for rank in step_group.attached.values()
        ]
        self._source.tell_drained(pids)

    def take(self, message: FromHost, now_s: float) -> None:
        """Take a report of the HostMemory that is attached."""
        self._source.view.hear()

        match message:
            case PagesGranted():
                self._source.view.stock(message)
            case PeerFound() | PeerGone():
                self._on_peer(message)
            case MirrorUpdate() if message.source not in (L2_SOURCE, L3_SOURCE):
                self._on_peer(message)
            case MirrorUpdate():
                self._on_mirrored(message)
            case MirrorCleared():
                self._on_cleared(message)
            case StorageStatus():
                self._source.note_storage(message)
                self._wake_all()
            case LookupProgress():
                self._on_lookup_progress(message, now_s)
            case PagesLeased():
                self._leases.take(message)
            case _:
                assert_never(message)

    def _on_mirrored(self, message: MirrorUpdate) -> None:
        """Follow what L2 has, or L3."""
        tier = Tier.L2 if message.source == L2_SOURCE else Tier.L3
        mirror = _mirrors(self._source.view)[tier]
        if self._news.is_followed:
            ready, dropped, news = mirror.follow_and_tell(message)
            self._news.note_shared(tier, message.group, news.came, news.gone)
        else:
            ready, dropped = mirror.follow(message)
        if tier is Tier.L2:
            for lane in self._lanes:
                lane.note_mirrored(ready, dropped)

    def _on_cleared(self, message: MirrorCleared) -> None:
        assert message.source == L3_SOURCE, "an L2 ends with its HostMemory"
        self._clear(Tier.L3, self._source.view.objects)
        self._free_later((), self._source.view.objects.take_all())

    def _clear(self, tier: Tier, mirror: Mirror) -> None:
        """Tell that a tier is out of reach, if it had anything."""
        if len(mirror):
            self._news.note(TierCleared(tier=tier, lane=None))

    def _on_peer(self, message: PeerFound | PeerGone | MirrorUpdate) -> None:
        """Take a report of what another node has."""
        match message:
            case MirrorUpdate():
                self._source.origins.follow(message)
            case PeerFound():
                self._source.origins.add(message)
            case PeerGone():
                # Its lookups end by themselves, with what has come.
                self._free_later((), self._source.origins.remove(message))

    def _on_lookup_progress(self, report: LookupProgress, now_s: float) -> None:
        asker = self._source.report(report)
        if isinstance(asker, PrefetchHint):
            if report.is_final:
                self._hints.end(asker, PageSource.CANCELLED, report.num_pinned_pages)
        elif asker is not None:
            lane = self._lanes[asker.lane]
            if report.is_final and asker.request_id not in self._requests.unplaced:
                self._source.repeat_lookup(asker, lane.waiting.key(asker))
                if not asker.prefetch.is_pending:
                    self._life.look_up_elsewhere(lane, asker, now_s)
            lane.waiting.wake(asker)

    def time_out(self, now_s: float) -> None:
        """Past its deadline HostMemory counts as silent: there is no L2 until it is heard again."""
        late = self._source.take_late(now_s)
        if late:
            self._counters.count(Count.HOST_SILENCES)
            self._pieces.add(self._give_up, late)
            self._wake_all()

    def _give_up(self, question: LeaseId | LookupId) -> None:
        """Give up waiting for the answer to this question, unless it has come meanwhile."""
        if not self._source.give_up(question):
            return
        if question in self._source.leases:
            self._leases.give_up(LeaseId(question))
        asker = self._source.give_up_lookup(LookupId(question))
        if isinstance(asker, PrefetchHint):
            # Storage may never have been asked, so the reason is not that it was late.
            self._hints.end(asker, PageSource.IO_ERROR)
        elif asker is not None:
            # HostMemory may have been heard again, and the request waited on, since all were woken.
            self._lanes[asker.lane].waiting.wake(asker)


def _mirrors(view: HostView) -> dict[Tier, Mirror]:
    """What is known of the tiers that all lanes share."""
    return {Tier.L2: view.keys, Tier.L3: view.objects}


def _free_some(part: tuple[set[bytes]]) -> None:
    (keys,) = part
    for _ in range(min(_FREED_KEYS, len(keys))):
        keys.pop()
