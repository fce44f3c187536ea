"""What is known of a request's pages outside L1, and how long it waits for those on their way."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from raydix.ids import L3_SOURCE, LookupId, SourceId
from raydix.runtime.config.policies import PrefetchStrategy
from raydix.runtime.messages.host import BROUGHT, LookupProgress, PageSource
from raydix.runtime.scheduler.settings import PrefetchSettings
from raydix.runtime.scheduler.timers import Alarm

_BYTE_OF = {source: bytes([source]) for source in PageSource}
_PENDING = _BYTE_OF[PageSource.PENDING]
_REFUSED = _BYTE_OF[PageSource.NO_HOST_PAGE]
_ALL_REASONS = bytes([reason for reason in PageSource if reason > PageSource.L3])
"""Why pages did not come: at another place each of them may be had."""


class LookupState(Enum):
    """Where the lookup of a request stands."""

    CLOSED = "closed"
    """The lookup brings nothing more: it ended, is of no interest, or there is nobody to ask."""
    DUE = "due"
    """A lookup is to be sent when it is this request's turn."""
    OPEN = "open"
    """A lookup was sent, and HostMemory may say more."""
    HALTED = "halted"
    """L2 has no room for more: when what has come is in L1, the rest is looked up."""


@dataclass(slots=True, kw_only=True)
class PrefetchState:
    """Owns: what HostMemory has said about a request's chain."""

    by_group: tuple[bytes, ...] = ()
    """Per KV group one `PageSource` per full page of the prompt; none if it was never looked up."""
    state: LookupState = LookupState.CLOSED
    fetch_from: SourceId = L3_SOURCE
    """Where the lookup that is due, open or over last looks for what L2 lacks."""
    lookup_id: LookupId | None = None
    """The latest lookup; None once what it brought is leased or not wanted any more."""
    num_l1_pages: int = 0
    """The number of pages of the chain that L1 held at the last lookup, whatever its windows."""
    num_full_pages: int = 0
    """The leading pages that no FULL or LATENT group lacks: `LookupProgress.num_full_pages`."""
    has_report: bool = False
    has_loss: bool = False
    """Whether some of what L3 brought was gone before it was leased."""
    first_runnable_s: float | None = None
    """The time since which the request would be admitted but for its pages on their way."""
    _alarm: Alarm = field(default_factory=Alarm)
    """The alarm for the time at which the request stops waiting."""
    _earlier: tuple[bytes, ...] = ()
    """What earlier lookups said, if some pages are looked up once more."""
    _reopened: bytes = _REFUSED
    """The reasons for which these pages did not come before."""
    _asked: set[SourceId] = field(default_factory=set)
    """Where pages have been looked for."""

    @property
    def is_pending(self) -> bool:
        """Whether more pages may come."""
        return self.state is not LookupState.CLOSED

    @property
    def is_halted(self) -> bool:
        """Whether more pages come only when others have gone on to L1."""
        return self.state is LookupState.HALTED

    @property
    def brings(self) -> PageSource:
        """What pages count as that the lookup brings."""
        return PageSource.L3 if self.fetch_from == L3_SOURCE else PageSource.PEER

    def has_asked(self, source: SourceId) -> bool:
        """Whether pages have been looked for there."""
        return source in self._asked

    def rule_out(self, reason: PageSource, num_pages: int, *, num_groups: int) -> None:
        """Note that no page is to be looked for, and for which reason."""
        self.by_group = (bytes([reason]) * num_pages,) * num_groups

    def make_due(self, num_l1_pages: Sequence[int], num_pages: int, source: SourceId) -> None:
        """Note that a lookup of `num_pages`, of which L1 holds the first, is to be sent."""
        self.by_group = _unknown(num_l1_pages, num_pages)
        self.fetch_from = source
        self.state = LookupState.DUE

    def make_due_again(self) -> None:
        """Note that the lookup is to be sent once more: L2 had no room for some pages."""
        self._earlier, self._reopened = self.by_group, _REFUSED
        self.state = LookupState.DUE

    def make_due_elsewhere(self, source: SourceId) -> None:
        """Note that what did not come is to be looked for at another place."""
        self._earlier, self._reopened = self.by_group, _ALL_REASONS
        self.fetch_from, self.state = source, LookupState.DUE

    def halt(self) -> None:
        """L2 had no room for some pages, and nobody else makes any: those that came may."""
        if any(_has_brought(sources, self.num_l1_pages) for sources in self.by_group):
            self.state = LookupState.HALTED

    def give_up_turns(self) -> None:
        """Wait no longer for the rest, as what has come cannot go on to L1 yet."""
        self.state = LookupState.CLOSED

    def has_lost(self, reaches: Sequence[int | None], num_known_pages: int) -> bool:
        """Pages that L3 brought are in no tier any more, for the first time.

        `num_known_pages`: so many are in L1 and L2 in groups of no reach.
        """
        if self.has_loss or self.is_pending or self.lookup_id is None:
            return False
        groups = zip(self.by_group, reaches, strict=True)
        full = [sources for sources, reach in groups if reach is None]
        return any(_has_brought(sources, num_known_pages) for sources in full)

    def note_loss(self) -> None:
        """Note a loss of pages, so that they are looked up once more, but no third time."""
        self.has_loss = True

    def open(self, lookup_id: LookupId, num_l1_pages: Sequence[int], num_pages: int) -> None:
        """Note that the lookup is sent. Of an earlier one, only some pages are reopened."""
        self.by_group = _unknown(num_l1_pages, num_pages)
        if self._earlier:
            pending = bytes.maketrans(self._reopened, _PENDING * len(self._reopened))
            self.by_group = tuple([was.translate(pending) for was in self._earlier])
        self._asked.add(self.fetch_from)
        self.state, self.lookup_id = LookupState.OPEN, lookup_id
        self.num_l1_pages = max(num_l1_pages)

    @property
    def holds_staged_pages(self) -> bool:
        """Whether L2 keeps pages for this request, or fetches them."""
        has_brought = any(_has_brought(sources, 0) for sources in self.by_group)
        return self.lookup_id is not None and (self.is_pending or has_brought)

    def report(self, report: LookupProgress) -> None:
        """Take a report of HostMemory; its last one closes the lookup."""
        self.by_group = report.sources
        self.num_full_pages = report.num_full_pages
        if self._earlier:
            pairs = zip(self._earlier, report.sources, strict=True)
            self.by_group = tuple([_keep_found(was, now, self.brings) for was, now in pairs])
        self.has_report = True
        if report.is_final:
            self.state = LookupState.CLOSED

    def close(self) -> None:
        """Close the lookup, for which nobody waits. If it was never sent, L2 had no room for it."""
        if self.state is LookupState.DUE:
            self.by_group = self._earlier or self.by_group
            self.give_up(PageSource.NO_HOST_PAGE)
        self.state, self.lookup_id = LookupState.CLOSED, None

    def give_up(self, reason: PageSource) -> None:
        """Note that pages of which nothing is known will not come, and for which reason."""
        known = _BYTE_OF[reason]
        self.by_group = tuple([sources.replace(_PENDING, known) for sources in self.by_group])

    def note_runnable(self, now_s: float) -> float:
        """The request would be admitted but for its pages on their way; returns since when."""
        if self.first_runnable_s is None:
            self.first_runnable_s = now_s
        return self.first_runnable_s

    def set_alarm(self, time_s: float, now_s: float) -> bool:
        """Have the request looked at when it stops waiting; False if it is anyway."""
        return self._alarm.advance(time_s, now_s)

    def count(self, *sources: PageSource) -> int:
        """The number of pages for which one of these sources was reported in some KV group."""
        if len(self.by_group) == 1:
            return sum(map(self.by_group[0].count, sources))
        return len(self.pages(*sources))

    def pages(self, *sources: PageSource) -> list[int]:
        """The pages for which one of these sources was reported in some KV group, in order."""
        if len(self.by_group) == 1:
            return [page for page, source in enumerate(self.by_group[0]) if source in sources]
        said = [np.isin(_column(group), sources) for group in self.by_group]
        return np.flatnonzero(np.any(said, axis=0)).tolist() if said else []


def _column(sources: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(sources, dtype=np.uint8)


def _unknown(num_l1_pages: Sequence[int], num_pages: int) -> tuple[bytes, ...]:
    l1, pending = bytes([PageSource.L1]), bytes([PageSource.PENDING])
    return tuple([l1 * num + pending * (num_pages - num) for num in num_l1_pages])


def _has_brought(sources: bytes, start: int) -> bool:
    """Whether a lookup has brought some page from `start` on."""
    return any(sources.find(source, start) >= 0 for source in BROUGHT)


def _keep_found(earlier: bytes, later: bytes, brings: PageSource) -> bytes:
    """Join two lookups: pages that the earlier one found count for the tier where they were.

    What found no room then and is in L1 or L2 now has been brought, too.
    """
    pairs = zip(earlier, later, strict=True)
    return bytes([_farthest(was, now, brings) for was, now in pairs])


def _farthest(was: int, now: int, brings: PageSource) -> int:
    if was == PageSource.NO_HOST_PAGE and now <= PageSource.L2:
        return brings
    return max(was, now) if was <= PageSource.L3 >= now else now


def prefetch_deadline_s(
    settings: PrefetchSettings,
    *,
    first_runnable_s: float,
    pending_tokens: int,
    recompute_s: float,
    answer_s: float = 0.0,
) -> float | None:
    """The time at which a runnable request stops to wait; None: not before all is there.

    `first_runnable_s`: when it would have been admitted but for its prefetch. `recompute_s`:
    predicted time to compute the `pending_tokens` instead. One that is too short lets prompts be
    computed, which corrects it; one that is too long is bounded by the patience that is set.
    `answer_s`: how long L3 takes to answer at least; a request that would not wait for so long does
    not begin to. As such requests do not test that, HostMemory does, by the clock.
    """
    match settings.strategy:
        case PrefetchStrategy.BEST_EFFORT:
            return first_runnable_s
        case PrefetchStrategy.WAIT_COMPLETE:
            return None
        case PrefetchStrategy.TIMEOUT:
            patience_s = settings.base_s + settings.per_1k_tokens_s * pending_tokens / 1024
            if settings.cap_at_recompute:
                patience_s = min(patience_s, recompute_s)
            return first_runnable_s + (patience_s if patience_s >= answer_s else 0.0)
