"""The index of L2: which host page holds what, who uses it, and which page goes next."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from raydix.errors import AccountingError
from raydix.ids import HostPageId, LeaseId, PageKey
from raydix.runtime.cache.arena_geometry import ArenaGeometry
from raydix.runtime.messages.arrays import Int32Array

_MAX_GENERATION = 2**31 - 1


class PageState(IntEnum):
    """What a host page is doing."""

    FREE = 0
    FILLING = 1
    """One holder writes it."""
    READY = 2
    """It holds the page that its key names; readers may pin it."""
    QUARANTINED = 3
    """A process that may still write it has not ended yet."""


@dataclass(slots=True)
class _HostPage:
    state: PageState = PageState.FREE
    generation: int = 0
    key: PageKey | None = None
    """Of a READY page."""
    num_readers: int = 0


@dataclass(slots=True)
class _GroupPages:
    """Pages of the slabs that one KV group owns now."""

    free: dict[HostPageId, None] = field(default_factory=dict)
    ready: dict[PageKey, HostPageId] = field(default_factory=dict)
    evictable: OrderedDict[HostPageId, None] = field(default_factory=OrderedDict)
    """READY pages without readers, least recently used first."""
    changes: dict[PageKey, bool] = field(default_factory=dict)
    """Keys that became READY (True) or were dropped (False) since the last `take_changes`."""
    num_used: int = 0
    """Pages that are not FREE."""


@dataclass(slots=True)
class _Slab:
    group: int | None = None
    num_ready: int = 0
    num_held: int = 0
    """Pages that cannot be dropped now: FILLING, QUARANTINED, or READY with readers."""


class HostIndex:
    """Owns: the state, key, generation and readers of every host page, and which group owns each slab.

    A page's generation rises whenever it is handed out. `_place` finds a page's slab and group; all counts are kept
    as states change, so that no operation costs more than the pages it touches (taking a slab: one slab).
    """

    def __init__(self, geometry: ArenaGeometry, generations: Int32Array | None = None) -> None:
        """Start with every page FREE. `generations` continues those of an arena that was in use before."""
        self._geometry = geometry
        self._pages = [_HostPage() for _ in range(geometry.num_host_pages)]
        if generations is not None:
            for page, generation in zip(self._pages, generations.tolist(), strict=True):
                page.generation = generation
        self._groups = [_GroupPages() for _ in range(geometry.num_groups)]
        self._slabs = [_Slab() for _ in range(geometry.num_slabs)]
        self._num_slabs_given = 0
        """Slabs are first given in order; later they only change hands."""
        self._leases: dict[LeaseId, list[HostPageId]] = {}

    # Queries ---------------------------------------------------------------------------------------------------

    def find(self, group: int, key: PageKey) -> HostPageId | None:
        """The READY page that holds `key`."""
        return self._groups[group].ready.get(key)

    def state(self, page_id: HostPageId) -> PageState:
        """A page's state."""
        return self._pages[page_id].state

    def generation(self, page_id: HostPageId) -> int:
        """How often the page has been handed out (modulo 2**31)."""
        return self._pages[page_id].generation

    def is_filling(self, page_id: int, generation: int) -> bool:
        """Whether the page exists, is FILLING, and has not changed hands since `generation`."""
        if not 0 <= page_id < len(self._pages):
            return False
        page = self._pages[page_id]
        return page.state is PageState.FILLING and page.generation == generation

    def ready_keys(self, group: int) -> list[PageKey]:
        """All READY keys of a group."""
        return list(self._groups[group].ready)

    def keys_by_use(self, group: int) -> list[PageKey]:
        """All READY keys: those with readers, then the others, the most recently used first, so chains head first."""
        pages = self._groups[group]
        pinned = [key for key, page_id in pages.ready.items() if page_id not in pages.evictable]
        unused = (self._pages[page_id].key for page_id in reversed(pages.evictable))
        return pinned + [key for key in unused if key is not None]

    @property
    def num_leases(self) -> int:
        """Leases that have not ended."""
        return len(self._leases)

    @property
    def num_leased(self) -> int:
        """Pins of all leases; O(leases)."""
        return sum(map(len, self._leases.values()))

    @property
    def num_readers(self) -> int:
        """Pins of all pages; O(pages)."""
        return sum(page.num_readers for page in self._pages)

    @property
    def num_unused_slabs(self) -> int:
        """Slabs that no group has needed yet."""
        return len(self._slabs) - self._num_slabs_given

    def count_by_state(self, group: int) -> dict[PageState, int]:
        """Pages of the group's slabs by state; O(pages)."""
        counts = dict.fromkeys(PageState, 0)
        for slab_index, slab in enumerate(self._slabs):
            if slab.group == group:
                for page_id in self._slab_page_ids(slab_index, group):
                    counts[self._pages[page_id].state] += 1
        return counts

    # Writing ---------------------------------------------------------------------------------------------------

    def allocate(self, group: int) -> HostPageId | None:
        """Hand out a page as FILLING, dropping the least recently used one if needed; None if all are in use."""
        pages = self._groups[group]
        if not pages.free and not self._take_unused_slab(group) and not self._drop_oldest(group):
            self._take_slab_from_another(group)
        if not pages.free:
            return None
        page_id = pages.free.popitem()[0]
        page = self._pages[page_id]
        page.state = PageState.FILLING
        page.generation = (page.generation + 1) & _MAX_GENERATION
        pages.num_used += 1
        self._slab(page_id).num_held += 1
        return page_id

    def publish(self, page_id: HostPageId, key: PageKey) -> bool:
        """Make a FILLING page READY, most recently used. False: the name is READY already and the page is FREE now."""
        page = self._expect(page_id, PageState.FILLING)
        group = self._group_of(page_id)
        pages = self._groups[group]
        if key in pages.ready:
            self.free(page_id)
            return False
        page.state = PageState.READY
        page.key = key
        pages.ready[key] = page_id
        pages.evictable[page_id] = None
        pages.changes[key] = True
        slab = self._slab(page_id)
        slab.num_held -= 1
        slab.num_ready += 1
        return True

    def free(self, page_id: HostPageId) -> None:
        """Take a FILLING or QUARANTINED page back unpublished."""
        page = self._pages[page_id]
        if page.state not in (PageState.FILLING, PageState.QUARANTINED):
            raise AccountingError(f"host page {page_id} is freed while {page.state.name}")
        page.state = PageState.FREE
        pages = self._groups[self._group_of(page_id)]
        pages.free[page_id] = None
        pages.num_used -= 1
        self._slab(page_id).num_held -= 1

    def quarantine(self, page_id: HostPageId) -> None:
        """Keep a FILLING page out of use until `free`."""
        self._expect(page_id, PageState.FILLING).state = PageState.QUARANTINED

    # Reading ---------------------------------------------------------------------------------------------------

    def touch_chain(self, group: int, keys: Sequence[PageKey]) -> None:
        """Mark the READY pages of a chain as used, the last one first, so that the chain loses its tail first."""
        pages = self._groups[group]
        for key in reversed(keys):
            page_id = pages.ready.get(key)
            if page_id is not None and page_id in pages.evictable:
                pages.evictable.move_to_end(page_id)

    def pin(self, page_id: HostPageId) -> None:
        """Add a reader to a READY page."""
        page = self._expect(page_id, PageState.READY)
        page.num_readers += 1
        if page.num_readers == 1:
            del self._groups[self._group_of(page_id)].evictable[page_id]
            self._slab(page_id).num_held += 1

    def unpin(self, page_ids: Iterable[HostPageId]) -> None:
        """Take a reader off each page, given in prefix order; the last one counts as used first."""
        for page_id in reversed(list(page_ids)):
            page = self._pages[page_id]
            if page.state is not PageState.READY or page.num_readers == 0:
                raise AccountingError(f"host page {page_id} is {page.state.name} with {page.num_readers} readers")
            page.num_readers -= 1
            if page.num_readers == 0:
                self._groups[self._group_of(page_id)].evictable[page_id] = None
                self._slab(page_id).num_held -= 1

    def lease(self, lease_id: LeaseId, group: int, keys: Sequence[PageKey]) -> list[HostPageId]:
        """Pin the longest READY prefix of `keys` until `end_lease`; an empty lease must be ended too."""
        if lease_id in self._leases:
            raise AccountingError(f"lease {lease_id} is taken twice")
        held: list[HostPageId] = []
        for key in keys:
            page_id = self.find(group, key)
            if page_id is None:
                break
            self.pin(page_id)
            held.append(page_id)
        self._leases[lease_id] = held
        return held

    def end_lease(self, lease_id: LeaseId) -> None:
        """Unpin what a lease holds."""
        self.unpin(self.detach_lease(lease_id))

    def detach_lease(self, lease_id: LeaseId) -> list[HostPageId]:
        """Forget a lease whose holder is gone; the caller unpins its pages later."""
        held = self._leases.pop(lease_id, None)
        if held is None:
            raise AccountingError(f"lease {lease_id} is unknown; {len(self._leases)} leases are held")
        return held

    def lease_ids(self) -> list[LeaseId]:
        """Leases that have not ended."""
        return list(self._leases)

    # Dropping --------------------------------------------------------------------------------------------------

    def drop_unpinned(self, group: int) -> int:
        """Drop every READY page without readers and say how many."""
        num_dropped = 0
        while self._drop_oldest(group):
            num_dropped += 1
        return num_dropped

    def take_changes(self, group: int) -> tuple[list[PageKey], list[PageKey]]:
        """Keys that became READY and keys that were dropped since the last call, each at most once."""
        changes, self._groups[group].changes = self._groups[group].changes, {}
        ready = [key for key, is_ready in changes.items() if is_ready]
        return ready, [key for key, is_ready in changes.items() if not is_ready]

    def _drop(self, page_id: HostPageId) -> None:
        page = self._pages[page_id]
        pages = self._groups[self._group_of(page_id)]
        assert page.key is not None
        del pages.ready[page.key]
        pages.changes[page.key] = False
        pages.num_used -= 1
        pages.free[page_id] = None
        page.key = None
        page.state = PageState.FREE
        self._slab(page_id).num_ready -= 1

    def _drop_oldest(self, group: int) -> bool:
        evictable = self._groups[group].evictable
        if not evictable:
            return False
        self._drop(evictable.popitem(last=False)[0])
        return True

    # Slabs -----------------------------------------------------------------------------------------------------

    def _slab(self, page_id: HostPageId) -> _Slab:
        return self._slabs[self._geometry.slab_of(page_id)]

    def _group_of(self, page_id: HostPageId) -> int:
        group = self._slab(page_id).group
        assert group is not None
        return group

    def _slab_page_ids(self, slab: int, group: int) -> Iterable[HostPageId]:
        first = slab * self._geometry.pages_per_slab
        return map(HostPageId, range(first, first + self._geometry.slab_pages(group)))

    def _give_slab(self, slab: int, group: int) -> None:
        self._slabs[slab].group = group
        # Handed out from the end of the dict, so that low ids go first.
        self._groups[group].free.update(dict.fromkeys(reversed(list(self._slab_page_ids(slab, group)))))

    def _take_unused_slab(self, group: int) -> bool:
        if self._num_slabs_given == len(self._slabs):
            return False
        self._give_slab(self._num_slabs_given, group)
        self._num_slabs_given += 1
        return True

    def _take_slab_from_another(self, group: int) -> None:
        """Give a starved group the slab of another one with the fewest READY pages among those nobody holds."""
        if len(self._groups) == 1:
            return
        candidates = [
            (slab.num_ready, index)
            for index, slab in enumerate(self._slabs)
            if slab.group != group and slab.num_held == 0
        ]
        if not candidates:
            return
        index = min(candidates)[1]
        loser = self._slabs[index].group
        assert loser is not None
        pages = self._groups[loser]
        for page_id in self._slab_page_ids(index, loser):
            if self._pages[page_id].state is PageState.READY:
                del pages.evictable[page_id]
                self._drop(page_id)
            del pages.free[page_id]
        self._give_slab(index, group)

    # Invariants ------------------------------------------------------------------------------------------------

    def _expect(self, page_id: HostPageId, state: PageState) -> _HostPage:
        page = self._pages[page_id]
        if page.state is not state:
            raise AccountingError(f"host page {page_id} is {page.state.name}; expected {state.name}")
        return page

    def check(self) -> None:
        """Prove that states, readers, leases and lists agree. Raises AccountingError with the figures."""
        for group in range(len(self._groups)):
            self._check_group(group)
        leased: dict[HostPageId, int] = {}
        for held in self._leases.values():
            for page_id in held:
                leased[page_id] = leased.get(page_id, 0) + 1
        for page_id, num_leases in leased.items():
            page = self._pages[page_id]
            if page.state is not PageState.READY or page.num_readers < num_leases:
                raise AccountingError(
                    f"host page {page_id} is in {num_leases} leases but {page.state.name}, {page.num_readers} readers"
                )
        for index, slab in enumerate(self._slabs):
            self._check_slab(index, slab)

    def _check_group(self, group: int) -> None:
        pages = self._groups[group]
        counts = self.count_by_state(group)
        num_pages = sum(counts.values())
        evictable = [p for p in pages.ready.values() if self._pages[p].num_readers == 0]
        figures = {
            "free": (counts[PageState.FREE], len(pages.free)),
            "ready": (counts[PageState.READY], len(pages.ready)),
            "used": (num_pages - counts[PageState.FREE], pages.num_used),
            "evictable": (len(evictable), len(pages.evictable)),
            "distinct pages": (len(set(pages.ready.values())), len(pages.ready)),
        }
        for name, (counted, kept) in figures.items():
            if counted != kept:
                raise AccountingError(f"group {group}: {counted} {name} pages counted, {kept} on record ({counts})")
        for key, page_id in pages.ready.items():
            page = self._pages[page_id]
            if page.state is not PageState.READY or page.key != key or self._group_of(page_id) != group:
                raise AccountingError(f"group {group}: {key.hex()} names host page {page_id}, which is {page}")
        for page_id in (*pages.evictable, *pages.free):
            page = self._pages[page_id]
            if page.num_readers or self._group_of(page_id) != group:
                raise AccountingError(f"group {group}: host page {page_id} is listed as unused but is {page}")

    def _check_slab(self, index: int, slab: _Slab) -> None:
        if slab.group is None:
            return
        pages = [self._pages[page_id] for page_id in self._slab_page_ids(index, slab.group)]
        num_ready = sum(page.state is PageState.READY for page in pages)
        num_held = sum(
            page.state in (PageState.FILLING, PageState.QUARANTINED) or page.num_readers > 0 for page in pages
        )
        if (num_ready, num_held) != (slab.num_ready, slab.num_held):
            raise AccountingError(
                f"slab {index}: {num_ready} READY and {num_held} held pages counted, "
                f"{slab.num_ready} and {slab.num_held} on record"
            )
