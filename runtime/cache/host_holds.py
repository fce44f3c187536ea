"""Host pages that are kept from being handed out for a while: fetched ones, and those of processes that died."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from raydix.ids import HostPageId, PageKey
from raydix.runtime.cache.host_index import HostIndex


class StagedPages:
    """Owns: pins of pages that were fetched from L3 and wait to be leased.

    A pin ends by `release`, or `grace_s` after it was last renewed.
    """

    def __init__(self, index: HostIndex, max_pages: Sequence[int], grace_s: float) -> None:
        """`max_pages`: per group."""
        self._index = index
        self._max_pages = max_pages
        self._grace_s = grace_s
        self._pages: list[dict[PageKey, tuple[HostPageId, float]]] = [{} for _ in max_pages]
        """Per group, in prefix order of each chain: the page, and when its pin ends."""

    @property
    def num_groups(self) -> int:
        """KV groups."""
        return len(self._pages)

    def max_pages(self, group: int) -> int:
        """How many pages of a group may be staged."""
        return self._max_pages[group]

    def num_left(self, group: int) -> int:
        """How many more pages of a group may be staged."""
        return self._max_pages[group] - len(self._pages[group])

    @property
    def num_pins(self) -> int:
        """Pins in all groups."""
        return sum(map(len, self._pages))

    @property
    def next_expiry_s(self) -> float | None:
        """When the first pin ends."""
        return min((next(iter(pages.values()))[1] for pages in self._pages if pages), default=None)

    def add(self, group: int, key: PageKey, now_s: float) -> None:
        """Pin the READY page of a key that is not staged yet."""
        page_id = self._index.find(group, key)
        assert page_id is not None
        assert key not in self._pages[group]
        self._index.pin(page_id)
        self._pages[group][key] = page_id, now_s + self._grace_s

    def renew(self, group: int, keys: Iterable[PageKey], now_s: float) -> None:
        """The pins of a whole chain end together and in order, so that its tail goes first."""
        pages = self._pages[group]
        for key in keys:
            if key in pages:
                pages[key] = pages.pop(key)[0], now_s + self._grace_s

    def release(self, group: int, keys: Iterable[PageKey]) -> None:
        """Unpin those of a chain's pages that are staged."""
        pages = self._pages[group]
        self._index.unpin([pages.pop(key)[0] for key in keys if key in pages])

    def release_all(self) -> None:
        """Unpin everything."""
        for group, pages in enumerate(self._pages):
            self.release(group, list(pages))

    def expire(self, now_s: float) -> None:
        """Unpin what has waited too long."""
        for group, pages in enumerate(self._pages):
            late: list[PageKey] = []
            for key, (_, until_s) in pages.items():
                if until_s > now_s:
                    break
                late.append(key)
            self.release(group, late)


@dataclass(slots=True)
class _Held:
    quarantined: list[HostPageId] = field(default_factory=list)
    pinned: list[HostPageId] = field(default_factory=list)


class Quarantine:
    """Owns: pages that a process may still write (QUARANTINED) or read (pinned), by holder.

    The holder is the process id that must exit, or None: the Scheduler must say that copies are drained.
    """

    def __init__(self, index: HostIndex) -> None:
        self._index = index
        self._held: dict[int | None, _Held] = {}

    @property
    def num_pages(self) -> int:
        """QUARANTINED pages."""
        return sum(len(held.quarantined) for held in self._held.values())

    @property
    def num_pins(self) -> int:
        """Pins of READY pages."""
        return sum(len(held.pinned) for held in self._held.values())

    def hold(self, pid: int | None, filling: Sequence[HostPageId], pinned: Sequence[HostPageId]) -> None:
        """Take over FILLING pages and pins from a holder that is gone."""
        for page_id in filling:
            self._index.quarantine(page_id)
        held = self._held.setdefault(pid, _Held())
        held.quarantined.extend(filling)
        held.pinned.extend(pinned)

    def let_go(self, pid: int | None) -> None:
        """The holder touches nothing any more; one that holds nothing changes nothing."""
        held = self._held.pop(pid, _Held())
        for page_id in held.quarantined:
            self._index.free(page_id)
        self._index.unpin(held.pinned)
