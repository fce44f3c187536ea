"""Lookups: what L2 holds of a chain, and fetching what it lacks from L3 or another node's L2."""

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from raydix.errors import AccountingError
from raydix.ids import BatchId, ConnectionId, HostPageId, LookupId
from raydix.runtime.cache.host.chain_touches import ChainTouches
from raydix.runtime.cache.host.fetch_turns import FetchTurns
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.lookup_pages import LookupPages
from raydix.runtime.cache.host.open_lookup import OpenLookup
from raydix.runtime.cache.host.pins import HostPins
from raydix.runtime.cache.host.reads import HostReads, ReadOutcome
from raydix.runtime.cache.host.settings import HostSettings
from raydix.runtime.cache.host.staged_pages import StagedPages
from raydix.runtime.cache.host.storage_orders import StorageOrders
from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.messages.host import (
    Lookup,
    LookupProgress,
    ObjectsDone,
    ObjectStatus,
    PageSource,
    Urgency,
)
from raydix.runtime.metrics import TRANSFER_BOUNDS_S, Histogram

_PIECE = 256
"""The number of lookups that are ended, reported or forgotten with one event; ticks do the rest."""

_Question = tuple[OpenLookup, int]
"""The lookup for which L3 is asked, and the KV group."""


class HostLookups:
    """Owns: lookups that are not final, and the questions to L3 that are open for them.

    What is fetched for a request stays staged until it is leased, or its lookup is cancelled, or
    for some time after the final report. After that report only the pages stay that the prefix
    needs which was found: of a WINDOW group, those of one window.
    """

    def __init__(
        self,
        settings: HostSettings,
        index: HostIndex,
        staged: StagedPages,
        orders: StorageOrders,
        reads: HostReads,
        counters: Counter[str],
        *,
        touches: ChainTouches,
        pins: HostPins,
        brings: PageSource,
    ) -> None:
        """Start without lookups. `brings`: what is reported of pages that are fetched."""
        self._page_size = settings.page_size
        self._settings = settings.storage
        self._rule = settings.rule
        self._index = index
        self._staged = staged
        self._orders = orders
        self._reads = reads
        self._counters = counters
        self._pages = LookupPages(index, reads)
        self._turns = FetchTurns(settings.storage, staged, orders, reads, self._pages)

        self._touches = touches
        self._pins = pins
        self._brings = brings
        self._lookups: dict[ConnectionId, dict[LookupId, OpenLookup]] = {}
        """Lookups that are not final, by the connection over which they were asked."""
        self.times = Histogram(TRANSFER_BOUNDS_S)
        """The distribution of how long requests' lookups took, in seconds."""
        self._num_arrived = 0
        self._arrived: OpenLookup | None = None
        """The lookup that came with this event, whose chain is touched already."""
        self._questions: dict[ConnectionId, dict[BatchId, _Question]] = {}
        """Questions to L3 that are open, by the connection of their lookups."""
        self._stopping: dict[OpenLookup, PageSource] = {}
        """Lookups to which L3 brings nothing more, and why; they end some at a time."""
        self._forgotten: list[OpenLookup] = []
        """Lookups of a Scheduler that is gone, to be freed some at a time: to free thousands of
        chains at once takes tens of ms.
        """

    @property
    def num_lookups(self) -> int:
        """The number of lookups that are not final."""
        return sum(map(len, self._lookups.values()))

    def start(self, connection: ConnectionId, message: Lookup, now_s: float) -> None:
        """Find out where the pages of a chain are, for the Scheduler at this connection.

        Raises AccountingError if the id is in use, or the message names other groups than L2 has.
        """
        lookups = self._lookups.setdefault(connection, {})
        if message.lookup_id in lookups:
            raise AccountingError(f"lookup {message.lookup_id} is started twice")
        if len(message.num_l1_pages) != self._index.num_groups:
            raise AccountingError(
                f"lookup {message.lookup_id} is for {len(message.num_l1_pages)} KV groups; "
                f"L2 has {self._index.num_groups}"
            )

        self._index.begin_use(message.user)
        keys = split_keys(message.keys)
        self._num_arrived += 1
        lookup = OpenLookup(
            connection,
            message,
            keys,
            self._rule,
            brings=self._brings,
            arrival=self._num_arrived,
            asked_s=now_s,
        )
        lookups[message.lookup_id] = lookup
        self._pages.note_change(lookup)

        for group in range(self._index.num_groups):
            for run in lookup.runs_outside_l1(group):
                found = self._index.find_all(group, keys[run.start : run.stop])
                lookup.look_in_l2(group, run, found)
                # A window that an earlier lookup has brought may make room for a later one.
                if message.urgency is Urgency.REQUEST and self._rule.reaches[group] is None:
                    self._staged.adopt(lookup.name, found)
        lookup.end_arrival()

        self._touch(lookup)
        self._arrived = lookup
        if not lookup.is_final:
            self._ask(lookup, now_s)

    def _touch(self, lookup: OpenLookup) -> None:
        self._touches.add(lookup.keys, lookup.user)
        # Reads for it may take the place of what has not been used for longest.
        if self._orders.is_in_use:
            self._touches.catch_up()

    @property
    def has_work(self) -> bool:
        """Whether a `Tick` would end or report more lookups."""
        return bool(self._stopping or self._pages.has_news or self._turns.has_work)

    @property
    def is_idle(self) -> bool:
        """Whether no lookup is open, or has yet to be reported, freed or taken out of the queue."""
        is_waiting = self.num_lookups or self._forgotten or not self._turns.is_empty
        return not (is_waiting or self._stopping or self._pages.has_news)

    def cancel(self, connection: ConnectionId, lookup_id: LookupId) -> None:
        """Fetch no more for this lookup and keep nothing for it, even after its final report."""
        self._staged.cancel((connection, lookup_id))
        lookup = self._lookups.get(connection, {}).get(lookup_id)
        if lookup is not None:
            lookup.cancel()
            self._pages.stop(lookup, PageSource.CANCELLED)

    def forget(self, connection: ConnectionId) -> None:
        """Forget a Scheduler's lookups without a report, as its connection is gone."""
        # Whatever is kept for each connection apart goes at once, however many lookups there are.
        lookups = self._lookups.pop(connection, {}).values()
        self._forgotten.extend(lookups)
        self._questions.pop(connection, None)
        self._stopping = {
            lookup: source
            for lookup, source in self._stopping.items()
            if lookup.connection != connection
        }

        self._pages.forget(connection)
        self._turns.forget(connection, lookups)
        # What others wait for, too, is read on.
        self._reads.forget(connection)
        self._staged.forget(connection)

    def retire(self) -> None:
        """End every lookup with what has come, as L3 is not to be used any more."""
        self._stop_all(PageSource.CANCELLED)

    def _stop_all(self, source: PageSource) -> None:
        # Those that are being stopped keep their reason.
        lookups = itertools.chain.from_iterable(each.values() for each in self._lookups.values())
        self._stopping = dict.fromkeys(lookups, source) | self._stopping

    def dispatch(self, now_s: float) -> None:
        """Order reads while not too many are in flight, once nobody is left who reads no more."""
        del self._forgotten[-_PIECE:]
        for lookup in list(itertools.islice(self._stopping, _PIECE)):
            self._pages.stop(lookup, self._stopping.pop(lookup))
        if not self._stopping:
            self._turns.dispatch(now_s)

    def _ask(self, lookup: OpenLookup, now_s: float) -> None:
        """Ask L3 once per group which of the missing pages it has, if that may be of use."""
        self._skip_what_l3_lacks(lookup, now_s)
        if not lookup.num_missing:
            return

        if not self._orders.is_in_use:
            self._pages.stop(lookup, PageSource.NOT_FOUND)
        elif lookup.run_tokens(self._page_size) < self._settings.min_tokens:
            self._pages.stop(lookup, PageSource.BELOW_MIN_TOKENS)
        elif not self._orders.is_readable:
            self._pages.stop(lookup, PageSource.IO_ERROR)
        else:
            for group, missing in enumerate(lookup.missing):
                if missing:
                    keys = b"".join(lookup.keys[index] for index in missing)
                    batch_id = self._orders.ask_exists(group, keys, now_s)
                    questions = self._questions.setdefault(lookup.connection, {})
                    questions[batch_id] = (lookup, group)
                    lookup.note_question(group)

    def _skip_what_l3_lacks(self, lookup: OpenLookup, now_s: float) -> None:
        """Do not ask for what L3 lacked a moment ago, nor for what is of no use without that."""
        for group in range(self._index.num_groups):
            lacking = (
                (index, PageSource.NOT_FOUND)
                for index in lookup.missing[group]
                if self._orders.missing.has(group, lookup.keys[index], now_s)
            )
            if self._pages.fail(lookup, group, lacking):
                self._counters["l3_pages_known_missing"] += lookup.forget_missing()

    def _take_answer(self, lookup: OpenLookup, group: int, done: ObjectsDone, now_s: float) -> None:
        found = list(zip(lookup.missing[group], done.statuses, strict=True))
        for index, code in found:
            if code == ObjectStatus.MISSING:
                self._orders.missing.note(group, lookup.keys[index], now_s)

        failures = (
            (index, ObjectStatus(code).source_of_miss)
            for index, code in found
            if code != ObjectStatus.OK and not self._pages.is_coming(lookup, group, index)
        )
        self._end_question(lookup, group, failures)

    def _end_question(
        self, lookup: OpenLookup, group: int, failures: Iterable[tuple[int, PageSource]]
    ) -> None:
        """Note L3's answer about a group; after the last one, fetch what useful prefixes need."""
        if lookup.is_final:
            return
        self._pages.fail(lookup, group, failures)
        if lookup.note_answer(group):
            self._pages.note_change(lookup)
        if lookup.is_asking or lookup.is_final:
            return
        lookup.begin_fetch()
        is_short = lookup.run_tokens(self._page_size) < self._settings.min_tokens
        if lookup.num_missing and is_short:
            self._pages.stop(lookup, PageSource.BELOW_MIN_TOKENS)

        for group, missing in enumerate(lookup.missing):
            for index in missing:
                if not lookup.is_waiting_for(group, index):
                    continue
                # What many wait for is here when the turn of further ones comes.
                is_crowded = self._reads.is_crowded(group, lookup.keys[index])
                if is_crowded or not self._pages.join(lookup, group, index):
                    lookup.want(group, index)
        self._queue(lookup)

    def _queue(self, lookup: OpenLookup) -> None:
        if lookup.next_wanted() is not None:
            self._turns.queue(lookup)

    def finish(self, done: ObjectsDone, now_s: float) -> None:
        """Take the answer to a question or a batch of reads; others are ignored."""
        question = self._take_question(done.batch_id)
        if question is not None:
            self._take_answer(*question, done, now_s)
        self._take_outcomes(self._reads.finish(done, now_s))

    def _take_question(self, batch_id: BatchId) -> _Question | None:
        for questions in self._questions.values():
            if (question := questions.pop(batch_id, None)) is not None:
                return question
        return None

    def _take_outcomes(self, outcomes: list[ReadOutcome]) -> None:
        # All pages of the batch that have come are READY by now, so the failure of one ends nothing
        # that waits for the others. Failures are told together: where there are windows each makes
        # a lookup choose anew for which ends it fetches.
        failures: dict[tuple[OpenLookup, int], list[tuple[int, PageSource]]] = {}
        for outcome in outcomes:
            for waiting, index in outcome.waiters:
                if outcome.status is ObjectStatus.OK:
                    self._pages.arrive(waiting, outcome.group, index)
                elif not outcome.is_unwanted:
                    failure = index, outcome.status.source_of_miss
                    failures.setdefault((waiting, outcome.group), []).append(failure)
                elif waiting.want(outcome.group, index):
                    # Its read was cancelled for others before this lookup joined it.
                    self._turns.queue(waiting)

        for (waiting, group), failed in failures.items():
            self._pages.fail(waiting, group, sorted(failed))
            # With windows, the next best end may need pages that nobody reads yet.
            self._queue(waiting)

    def give_up(self, batch_id: BatchId) -> None:
        """Give up a batch that is overdue: nobody waits for it any longer."""
        question = self._take_question(batch_id)
        if question is not None:
            lookup, group = question
            overdue = ((index, PageSource.TIMED_OUT) for index in lookup.missing[group])
            self._end_question(lookup, group, overdue)
        self._take_outcomes(self._reads.give_up(batch_id))

    def lose(self) -> list[HostPageId]:
        """Fail everything that was asked of the storage actor, which is gone.

        Returns the FILLING pages, which are the caller's now.
        """
        held = self._reads.lose()
        self._questions.clear()
        self._stop_all(PageSource.IO_ERROR)
        return held

    def take_reports(self, now_s: float) -> list[tuple[ConnectionId, LookupProgress]]:
        """Take one report for each lookup that has news, or for the first of many, and for whom.

        A final one ends it and touches its chain.
        """
        changed = self._pages.take_changed(_PIECE)
        reports = [(lookup.connection, self._report(lookup, now_s)) for lookup in changed]
        for lookup, (_, report) in zip(changed, reports, strict=True):
            if report.is_final:
                self._end(lookup, now_s)
        self._arrived = None
        return reports

    def _report(self, lookup: OpenLookup, now_s: float) -> LookupProgress:
        """What is known of a lookup; if that is all there will be, what it wanted is pinned."""
        report = lookup.report(now_s)
        if lookup.pin is None or not report.is_final or lookup.is_cancelled:
            return report
        # Chains are used in the order in which they were looked up.
        self._touches.catch_up()
        num_pinned = self._pins.pin(lookup.pin, lookup.keys, now_s)
        return replace(report, num_pinned_pages=num_pinned)

    def _end(self, lookup: OpenLookup, now_s: float) -> None:
        del self._lookups[lookup.connection][lookup.lookup_id]
        self._turns.end(lookup)
        # What a hint has brought is pinned for nobody.
        if lookup.urgency is Urgency.REQUEST and not lookup.is_cancelled:
            self.times.observe(now_s - lookup.asked_s)
            self._staged.end(lookup.name, lookup.runs(), now_s)
        if lookup is not self._arrived:
            self._touch(lookup)
