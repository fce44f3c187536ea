"""One lookup that is not final."""

import itertools
from collections.abc import Iterable, Sequence

from raydix.ids import L3_SOURCE, ConnectionId, HostPageId, LookupId, PageKey
from raydix.runtime.cache.host.window_ends import PageHope, PrefixRule, plan_fetch
from raydix.runtime.cache.kv_match import longest_prefix
from raydix.runtime.messages.host import Lookup, LookupProgress, PageSource

LookupName = tuple[ConnectionId, LookupId]
"""What a lookup is called in HostMemory, as each Scheduler counts its own."""

_WANTED = 100
"""L3 has the page, and nobody reads it yet for this lookup. Reported as PENDING."""
_SPARE = 101
"""L3 has or may have the page, but no end that is fetched for needs it. Reported as NOT_FOUND."""
_AWAITED = bytes([PageSource.PENDING, _WANTED])
"""The codes of pages that are to come."""
_OPEN = bytes([*_AWAITED, _SPARE])
"""The codes of pages that have not come, and still may."""


def _table(changes: dict[int, int]) -> bytes:
    return bytes(changes.get(code, code) for code in range(256))


_REPORTED = _table({_WANTED: PageSource.PENDING, _SPARE: PageSource.NOT_FOUND})
_SPARED = _table({PageSource.PENDING: _SPARE, _WANTED: _SPARE})
_NEEDED = _table({_SPARE: _WANTED})
_LOST = {
    source: _table(dict.fromkeys(range(PageSource.L1 + 1, 256), source)) for source in PageSource
}
"""The table, by reason, that marks all pages but those that L1 holds as lost for that reason."""
_GAPS = bytes(code > PageSource.L3 for code in range(256))
_HOPES = bytes(
    PageHope.FETCHABLE
    if code in _OPEN
    else PageHope.HERE
    if code <= PageSource.L3
    else PageHope.LOST
    for code in range(256)
)


class OpenLookup:
    """Owns: what is known so far of the pages of one chain, in every KV group.

    A page is named by its group and its place in the chain. An end is a place before which a prefix
    may end. A page of a FULL or LATENT group that cannot be had ends the useful prefix for all
    groups. One of a WINDOW group rules out the ends whose window it is in. Windows are fetched only
    for chosen ends.

    Which windows L3 lacks is looked at once it has said how far FULL and LATENT groups reach there:
    whoever computes a prefix that lacks but its window is to leave one.
    """

    def __init__(
        self,
        connection: ConnectionId,
        message: Lookup,
        keys: list[PageKey],
        rule: PrefixRule,
        *,
        brings: PageSource,
        arrival: int,
        asked_s: float,
    ) -> None:
        """Start with a chain whose keys are split. The lower `arrival` is, the older the lookup.

        Nothing is known of pages outside L1. `brings`: what is reported of pages that are fetched.
        """
        self.connection = connection
        """The connection over which the lookup was asked, and is answered."""
        self.lookup_id = message.lookup_id
        self.name: LookupName = (connection, message.lookup_id)
        self.urgency = message.urgency
        self.user = message.user
        self.pin = message.pin
        self.num_brought_pages, num_l1_pages = message.num_brought_pages, message.num_l1_pages
        self.arrival = arrival
        self.asked_s = asked_s
        self.keys = keys
        self.end = len(keys)
        """The place in the chain from which on nothing is fetched."""

        self.missing: list[list[int]] = [[] for _ in num_l1_pages]
        """Per KV group, the pages that L2 lacked when the lookup arrived, in order."""
        self.num_read = [0 for _ in num_l1_pages]
        """Per KV group, the number of pages whose reads were ordered for this lookup."""
        self.is_cancelled = False
        self._asked: set[int] = set()
        """KV groups about which L3 is asked and has not answered yet."""
        self._is_queued = False
        self._brings = brings
        self._source = L3_SOURCE if brings is PageSource.L3 else message.source

        self._rule = rule
        self._has_windows = rule.has_windows
        self._is_fetching = False
        """Whether L3 has answered all questions, so that pages are fetched."""
        self._in_l1 = [
            range(0 if reach is None else max(0, num_pages - reach), num_pages)
            for reach, num_pages in zip(rule.reaches, num_l1_pages, strict=True)
        ]
        """Per KV group, the pages that L1 holds."""
        self._sources = [bytearray([PageSource.L1]) * len(keys) for _ in num_l1_pages]
        """Per KV group, one byte for each page: a `PageSource`, `_WANTED` or `_SPARE`."""
        self._full_groups = {group for group, reach in enumerate(rule.reaches) if reach is None}
        self._full_end = len(keys) if self._full_groups else 0
        """The first page that a FULL or LATENT group is known to lack, or the end of the chain."""
        self._num_full = self._full_end
        """The number of leading pages that all FULL and LATENT groups are known to have."""
        self._put_off: PageSource | None = None
        """Why pages were lost since ends were last chosen: the choice waits until L3 has answered
        for all FULL and LATENT groups. None: no choice waits.
        """

    def runs_outside_l1(self, group: int) -> tuple[range, range]:
        """Pages that L1 does not hold, in order: what comes before and what comes behind."""
        in_l1 = self._in_l1[group]
        return range(in_l1.start), range(in_l1.stop, len(self.keys))

    @property
    def is_final(self) -> bool:
        """Whether no page's source is open."""
        return not any(code in sources for sources in self._sources for code in _AWAITED)

    @property
    def _is_asking_full(self) -> bool:
        """Whether L3 has yet to say how far FULL and LATENT groups reach."""
        asked = [self._sources[group] for group in self._asked & self._full_groups]
        return any(code in sources for sources in asked for code in _AWAITED)

    @property
    def num_missing(self) -> int:
        """Places of the chain that are of no use unless L3 has pages that L2 lacks.

        Pages that L2 has count among them: those behind a page that is missing, and where there are
        windows the whole prefix before a window of which a page is missing.
        """
        gaps = [bytes(sources.translate(_GAPS)) for sources in self._sources]
        return self.end - longest_prefix(self._rule.reaches, gaps, self.end)

    def run_tokens(self, page_size: int) -> int:
        """The tokens of the run that L3 is asked for, with what it brought the request before."""
        return (self.num_missing + self.num_brought_pages) * page_size

    def next_wanted(self) -> tuple[int, int] | None:
        """Group and place of the page to be read next: all groups' prefixes grow together."""
        heads = [(sources.find(_WANTED), group) for group, sources in enumerate(self._sources)]
        index, group = min((head for head in heads if head[0] >= 0), default=(None, 0))
        return None if index is None else (group, index)

    def is_waiting_for(self, group: int, index: int) -> bool:
        """Whether a page is to come from L3."""
        return self._sources[group][index] in _AWAITED

    def runs(self) -> list[list[PageKey]]:
        """The keys of the pages that are needed before the end, per KV group."""
        return [self.keys[start : self.end] for start in self._rule.starts(self.end)]

    def unwanted_keys(self, group: int) -> list[PageKey]:
        """The keys of missing pages that are not to come any more."""
        sources = self._sources[group]
        return [self.keys[i] for i in self.missing[group] if sources[i] not in _AWAITED]

    def report(self, now_s: float) -> LookupProgress:
        """What the Scheduler is told of the lookup now."""
        return LookupProgress(
            lookup_id=self.lookup_id,
            sources=tuple(bytes(sources.translate(_REPORTED)) for sources in self._sources),
            is_final=self.is_final,
            num_full_pages=self._num_full,
            source=self._source,
            seconds=now_s - self.asked_s,
        )

    def look_in_l2(self, group: int, run: range, found: Sequence[HostPageId | None]) -> None:
        """What L2 held on arrival of a run of pages; the runs of a group are told in order."""
        sources = self._sources[group]
        sources[run.start : run.stop] = bytes([PageSource.L2]) * len(run)
        missing = [index for index, page in zip(run, found, strict=True) if page is None]
        for index in missing:
            sources[index] = PageSource.PENDING
        self.missing[group] += missing

    def end_arrival(self) -> None:
        """L2 was asked about all pages: missing ones that no reachable end needs do not matter."""
        first_missing = [self.missing[group][:1] for group in self._full_groups]
        self._num_full = min([self._num_full, *itertools.chain(*first_missing)])
        self._choose(PageSource.NOT_FOUND)
        if self._has_windows:
            self.forget_missing()

    def forget_missing(self) -> int:
        """Give up pages of L3 that will not come anyway; returns how many they are."""
        num_before = sum(map(len, self.missing))
        self.missing = [
            [index for index in missing if sources[index] in _AWAITED]
            for missing, sources in zip(self.missing, self._sources, strict=True)
        ]
        return num_before - sum(map(len, self.missing))

    def begin_fetch(self) -> None:
        """Choose the ends to fetch for, once L3 has answered for every group."""
        self._is_fetching = True
        self._choose(PageSource.NOT_FOUND)

    def arrive(self, group: int, index: int) -> bool:
        """Note that a fetched page is in L2. Returns whether that matters."""
        if not self.is_waiting_for(group, index):
            return False
        self._sources[group][index] = self._brings
        return True

    def fail(self, group: int, failures: Iterable[tuple[int, PageSource]]) -> bool:
        """Note that pages of a group, in order, will not come. Returns whether that is news."""
        if self._rule.reaches[group] is None:
            first = next(iter(failures), None)
            if first is None:
                return False
            self._full_end = min(self._full_end, first[0])
            self._num_full = min(self._num_full, first[0])
            return self._end_at(*first)

        sources, source = self._sources[group], None
        for index, reason in failures:
            if self.is_waiting_for(group, index):
                source = reason
            if sources[index] in _OPEN:
                sources[index] = reason
        if source is not None:
            self._choose(source)
        return source is not None

    def fail_unread(self, group: int, source: PageSource) -> bool:
        """Pages of a group that nobody reads yet will not come. Returns whether that is news."""
        return self._fail_all(group, bytes([_WANTED, _SPARE]), source)

    def stop(self, source: PageSource) -> bool:
        """Note that no more pages will come. Returns whether that is news."""
        if self.is_final:
            return False
        self._asked.clear()
        for group in range(len(self._sources)):
            self._fail_all(group, _OPEN, source)
        return True

    def _fail_all(self, group: int, codes: bytes, source: PageSource) -> bool:
        sources = self._sources[group]
        places = [place for code in codes if (place := sources.find(code)) >= 0]
        if self._rule.reaches[group] is None:
            return bool(places) and self._end_at(min(places), source)

        is_news = any(code in sources for code in codes if code in _AWAITED)
        for code in codes:
            reason = PageSource.NOT_FOUND if code == _SPARE else source
            sources[:] = sources.replace(bytes([code]), bytes([reason]))
        if is_news:
            self._choose(source)
        return is_news

    def _end_at(self, index: int, source: PageSource) -> bool:
        """Cut the chain before a page that will not come: none from there on is of use.

        These get `source` as their reason, except those that L1 holds, and those behind a former
        end, which keep the reason that they have.
        """
        if index >= self.end:
            return False
        former_end, self.end = self.end, index
        for sources in self._sources:
            sources[index:former_end] = sources[index:former_end].translate(_LOST[source])
        self._choose(source)
        return True

    def _choose(self, source: PageSource) -> None:
        """Choose the ends to fetch for, after pages were lost for the reason `source`.

        The best end only ever moves to an earlier place. FULL pages behind it get that reason, but
        for those that nobody said to be missing: it is a window that is.
        Without windows there is no choice: the best end is the first page that was lost.
        """
        if not self._has_windows:
            return
        if self._is_asking_full:
            self._put_off = source if self._put_off is None else max(self._put_off, source)
            return
        hopes = [bytes(sources[: self.end].translate(_HOPES)) for sources in self._sources]
        plan = plan_fetch(self._rule, hopes)
        # Nobody said that FULL pages behind the best end are missing: a window is.
        if source is PageSource.NOT_FOUND:
            source = PageSource.NO_WINDOW

        for sources, reach in zip(self._sources, self._rule.reaches, strict=True):
            if reach is None:
                for code in _OPEN:
                    behind = sources[plan.best : self.end]
                    sources[plan.best : self.end] = behind.replace(bytes([code]), bytes([source]))
                continue

            if self._is_fetching:
                windows = [(end - reach, end) for end in plan.ends]
            else:
                # L3 may have any window, so ask about all pages that some later end could need.
                windows = [(plan.reached + 1 - reach, plan.best)] if plan.ends and reach else []
            spared = sources.translate(_SPARED)
            for start, end in windows:
                window = slice(max(0, start), end)
                spared[window] = sources[window].translate(_NEEDED)
            sources[:] = spared
        self.end = plan.best

    def cancel(self) -> None:
        """Cancel the lookup: nobody waits for it any more."""
        self.is_cancelled = True

    @property
    def is_asking(self) -> bool:
        """Whether L3 owes an answer for which somebody waits."""
        return bool(self._asked)

    def note_question(self, group: int) -> None:
        """Note that L3 is asked about the missing pages of one group."""
        self._asked.add(group)

    def note_answer(self, group: int) -> bool:
        """Note that L3 has answered for a group, after `fail`. Returns whether that is news."""
        self._asked.discard(group)
        if group not in self._full_groups or self._is_asking_full:
            return False
        self._num_full = self._full_end
        put_off, self._put_off = self._put_off, None
        if put_off is not None:
            self._choose(put_off)
        return put_off is not None

    def join_queue(self) -> bool:
        """Let it wait for its turn to read. Returns whether it did not wait yet."""
        was_queued, self._is_queued = self._is_queued, True
        return not was_queued

    def leave_queue(self) -> None:
        """Take it out of the queue, as it wants nothing more for now."""
        self._is_queued = False

    def want(self, group: int, index: int) -> bool:
        """Note that nobody reads a page that is to come. Returns whether that is news."""
        if self._sources[group][index] != PageSource.PENDING:
            return False
        self._sources[group][index] = _WANTED
        return True

    def take_wanted(self, group: int) -> int | None:
        """Take the first page that is wanted of a group; None if there is none."""
        index = self._sources[group].find(_WANTED)
        if index < 0:
            return None
        self._sources[group][index] = PageSource.PENDING
        return index

    def count_read(self, group: int) -> None:
        """Count a page whose read was ordered for this lookup."""
        self.num_read[group] += 1
