"""Repairs of L3: finding out which pages of L2 it lacks, so that they are written again."""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice
from math import inf

import numpy as np

from raydix.ids import BatchId, HostPageId, PageKey
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.lru_lists import view_of
from raydix.runtime.cache.host.settings import StorageSettings
from raydix.runtime.cache.host.storage_orders import StorageOrders
from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.messages.host import ObjectsDone, ObjectStatus

_MAX_DUE = 65_536
_WALK_PAGES = 1024
"""The most pages that the walk passes over before other events have their turn."""


class HostRepairs:
    """Owns: which pages of L2 are to be asked about, and the one question to L3 that is open.

    When a storage actor attaches, its backend may be another one, or have lost everything. So L3 is
    asked about every page that L2 holds then and that it is not to get anyway: pages that lookups
    use go first, and then those used most recently. Later L3 is asked about a page again when a
    lookup uses it and `exists_interval_s` has passed since the last question, or for a new page
    since its first use. What L3 lacks is noted. That L3 has a page is thus tested while the page is
    used; that it lacks one, by a write. A question that told nothing of a page is repeated, whether
    the page is used or not, once that time has passed: no sooner, as this page alone may fail.

    No page is missed. One that is dropped meanwhile needs no question, and one that is filled after
    the attach is being written to this backend or was read from it, as its generation shows, or was
    pulled from another node: L3 is asked about that at once.
    """

    def __init__(
        self,
        settings: StorageSettings,
        index: HostIndex,
        orders: StorageOrders,
        counters: Counter[str],
    ) -> None:
        self._settings = settings
        self._index = index
        self._orders = orders
        self._counters = counters
        self._due: OrderedDict[HostPageId, None] = OrderedDict()
        self._put_off: OrderedDict[HostPageId, float] = OrderedDict()
        """Pages of which a question told nothing, and when each is due again; earliest first."""
        self._walk: Iterator[HostPageId] | None = None
        """The walk over the pages that were READY when the backend attached; None: it is over."""
        self._num_ahead = 0
        """The most pages that the walk has still to meet."""
        self._question: tuple[BatchId, list[tuple[int, PageKey]]] | None = None

        self._generations = index.generations()
        """Each page's generation when the backend attached, or when it was first used since."""
        self._due_at_s = array("d", bytes(8 * len(self._generations)))
        """The time from which on a use of a page, in that generation, makes it due. Only when L3 is
        asked, or a repair is made, depends on it.
        """
        self._all_due_at_s = view_of(self._due_at_s, np.float64)

    @property
    def num_pending(self) -> int:
        """The number of pages that are due or asked about; an upper bound during the walk."""
        num_ahead = min(self._num_ahead, self._index.num_ready)
        num_asked_about = 0 if self._question is None else len(self._question[1])
        return len(self._due) + num_ahead + num_asked_about

    @property
    def has_work(self) -> bool:
        """Whether the walk can go on at once."""
        return self._walk is not None and self._question is None and self._orders.is_readable

    @property
    def next_retry_s(self) -> float | None:
        """The time at which the first page that was put off is due again; None if not known."""
        if self._question is not None or not self._orders.is_readable:
            return None
        return next(iter(self._put_off.values()), None)

    def ask_about_all(self) -> None:
        """Ask a storage actor that has attached whether it has every READY page."""
        self._generations = self._index.generations()
        self._all_due_at_s[:] = -inf
        self._walk = self._index.newest_first()
        self._num_ahead = self._index.num_ready

    def ask_about(self, page_ids: Iterable[HostPageId]) -> None:
        """Ask L3 about pages that have come from elsewhere, if it is in use."""
        if self._orders.is_in_use:
            self._due.update(dict.fromkeys(page_ids))

    def note_use(self, keys: bytes, now_s: float) -> None:
        """Note that a lookup uses the pages of this chain that L2 holds, in all groups."""
        if not self._orders.is_in_use:
            return
        chain = split_keys(keys)
        for group in range(self._index.num_groups):
            for page_id in self._index.find_all(group, chain):
                if page_id is None:
                    continue
                if page_id in self._index.unwritten:
                    self._index.unwritten.note_use(page_id)
                elif len(self._due) < _MAX_DUE:
                    self._add_if_due(page_id, now_s)

    def _add_if_due(self, page_id: HostPageId, now_s: float) -> None:
        if page_id in self._index.unwritten or not self._orders.is_readable:
            return
        next_s = now_s + self._settings.exists_interval_s
        generation = self._index.generation(page_id)
        if self._generations[page_id] != generation:
            self._generations[page_id] = generation
            self._due_at_s[page_id] = next_s
        elif self._due_at_s[page_id] <= now_s:
            self._due_at_s[page_id] = next_s
            self._due[page_id] = None

    def dispatch(self, now_s: float) -> None:
        """Ask L3 about some pages of one group, unless a question is open."""
        if self._question is not None or not self._orders.is_readable:
            return
        if not self._due:
            self._go_on(now_s)
        if not self._due:
            self._retry(now_s)

        names: list[tuple[int, PageKey]] = []
        while self._due and len(names) < self._settings.batch_pages:
            page_id = next(iter(self._due))
            name = self._index.name(page_id)
            if names and name is not None and name[0] != names[0][0]:
                break
            del self._due[page_id]
            if name is not None and page_id not in self._index.unwritten:
                names.append(name)
        if names:
            keys = b"".join(key for _, key in names)
            self._question = self._orders.ask_exists(names[0][0], keys, now_s), names

    def _go_on(self, now_s: float) -> None:
        """Take the next piece of the walk."""
        if self._walk is None:
            return
        page_ids = list(islice(self._walk, _WALK_PAGES))
        for page_id in page_ids:
            self._add_if_due(page_id, now_s)
        self._num_ahead -= len(page_ids)
        if len(page_ids) < _WALK_PAGES:
            self._walk = None
            self._num_ahead = 0

    def _retry(self, now_s: float) -> None:
        """Make those pages due that were put off until now."""
        for _ in range(min(_WALK_PAGES, len(self._put_off))):
            page_id, retry_at_s = next(iter(self._put_off.items()))
            if retry_at_s > now_s:
                break
            del self._put_off[page_id]
            self._due[page_id] = None

    def finish(self, done: ObjectsDone, now_s: float) -> bool:
        """Take the answer to the question. Returns False if the answer is to another order."""
        if self._question is None or done.batch_id != self._question[0]:
            return False
        _, names = self._question
        self._question = None
        self._counters["l3_pages_asked_about"] += len(names)
        for (group, key), code in zip(names, done.statuses, strict=True):
            if code == ObjectStatus.MISSING:
                self._orders.missing.note(group, key, now_s)
            elif code != ObjectStatus.OK:
                self._put_off_name(group, key, now_s)
        return True

    def give_up(self, batch_id: BatchId, now_s: float) -> None:
        """Give up an overdue batch; if it is the question, its pages are asked about once more."""
        if self._question is None or self._question[0] != batch_id:
            return
        for group, key in self._question[1]:
            self._put_off_name(group, key, now_s)
        self._question = None

    def _put_off_name(self, group: int, key: PageKey, now_s: float) -> None:
        page_id = self._index.find(group, key)
        if page_id is not None:
            self._put_off[page_id] = now_s + self._settings.exists_interval_s
            self._put_off.move_to_end(page_id)

    def clear(self) -> None:
        """Forget what was to be asked: the next storage actor is asked about everything."""
        self._question = None
        self._due.clear()
        self._put_off.clear()
        self._walk = None
        self._num_ahead = 0
