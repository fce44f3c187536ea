"""Finding out which pages of L2 the storage backend has lost, or never had, so that they are written again."""

from collections import Counter
from collections.abc import Sequence

from raydix.ids import BatchId, PageKey
from raydix.runtime.cache.host_events import StorageSettings
from raydix.runtime.cache.host_index import HostIndex
from raydix.runtime.cache.storage_orders import StorageOrders
from raydix.runtime.messages.host import ObjectsDone, ObjectStatus

_MAX_NAMES = 65_536


class HostRepairs:
    """Owns: pages of L2 that are to be looked for in L3, and the one search for some of them that is under way.

    All READY pages are looked for when a storage actor attaches: its backend may be another one, or have lost
    everything. Later a page is looked for when a lookup uses it, `look_interval_s` after it was last looked for or was
    first used. What L3 lacks is noted.
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
        self._due: dict[tuple[int, PageKey], None] = {}
        self._looks_at_s: dict[tuple[int, PageKey], float] = {}
        """When a page that a lookup uses is to be looked for; only the cost of a search depends on it."""
        self._search: tuple[BatchId, int, list[PageKey]] | None = None

    @property
    def num_pending(self) -> int:
        """Pages that wait to be looked for, or are being looked for."""
        return len(self._due) + (0 if self._search is None else len(self._search[2]))

    def look_for_all(self, num_groups: int) -> None:
        """A storage actor has attached: look for every READY page, the most recently used ones first."""
        self._looks_at_s.clear()
        for group in range(num_groups):
            for key in self._index.keys_by_use(group):
                self._add(group, key)

    def note_use(self, group: int, keys: Sequence[PageKey], now_s: float) -> None:
        """A lookup uses the pages of this chain that L2 holds."""
        if not self._orders.is_in_use:
            return
        if len(self._looks_at_s) > _MAX_NAMES:
            self._looks_at_s.clear()
        later_s = now_s + self._settings.look_interval_s
        for key in keys:
            if self._looks_at_s.setdefault((group, key), later_s) <= now_s and self._index.find(group, key) is not None:
                self._looks_at_s[group, key] = later_s
                self._add(group, key)

    def _add(self, group: int, key: PageKey) -> None:
        if len(self._due) < _MAX_NAMES:
            self._due[group, key] = None

    def dispatch(self, now_s: float) -> None:
        """Search for some pages of one group, unless a search is under way."""
        if not self._due or self._search is not None or not self._orders.is_readable:
            return
        first_group: int | None = None
        keys: list[PageKey] = []
        while self._due and len(keys) < self._settings.batch_pages:
            group, key = next(iter(self._due))
            if first_group not in (None, group):
                break
            del self._due[group, key]
            if self._index.find(group, key) is not None:
                first_group = group
                keys.append(key)
        if first_group is not None:
            self._search = self._orders.find(first_group, b"".join(keys), now_s), first_group, keys

    def finish(self, done: ObjectsDone, now_s: float) -> bool:
        """Take the answer to the search. False: it is not ours."""
        if self._search is None or done.batch_id != self._search[0]:
            return False
        _, group, keys = self._search
        self._search = None
        self._counters["l3_pages_looked_for"] += len(keys)
        for key, code in zip(keys, done.statuses, strict=True):
            if code == ObjectStatus.MISSING:
                self._orders.missing.note(group, key, now_s)
        return True

    def give_up(self, batch_id: BatchId) -> None:
        """A batch is overdue; if it is the search, its pages are looked for when they are used again."""
        if self._search is not None and self._search[0] == batch_id:
            self._search = None

    def clear(self) -> None:
        """The storage actor is gone or not to be asked; the next one is asked for everything."""
        self._search = None
        self._due.clear()
