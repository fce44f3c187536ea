"""Pages that were fetched from L3 and wait to be leased."""

from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from raydix.errors import AccountingError
from raydix.ids import ConnectionId, HostPageId, PageKey
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.open_lookup import LookupName
from raydix.runtime.cache.host.page_names import PageNames


@dataclass(slots=True, eq=False)
class _Stage:
    """The pages that are kept for one lookup, and until when."""

    pins: dict[int, HostPageId] = field(default_factory=dict)
    """Pages by the numbers of their pins, in prefix order within each group once the lookup has
    ended; some may have been released by now.
    """
    until_s: float = 0.0
    """The time at which the lookup's grace ends, once the lookup has ended."""


class StagedPages:
    """Owns: pins of fetched pages, and for which lookups each is kept.

    A pin ends when its page is released, or when no lookup wants it any more: each of them was
    cancelled, or ended `grace_s` ago. The pins of a cancelled lookup make room at once.
    """

    def __init__(
        self, index: HostIndex, max_pages: Sequence[int], grace_s: float, piece_pages: int
    ) -> None:
        """Start with nothing staged. `max_pages`: per group. `piece_pages`: pins ended per turn."""
        self._index = index
        self.max_pages = tuple(max_pages)
        """The most pages that may be staged, per KV group."""
        self._grace_s = grace_s
        self._piece_pages = piece_pages
        self._pinned = [PageNames() for _ in max_pages]
        self._num_filling = [0 for _ in max_pages]
        """Per KV group, the pages that reads are filling, wherever they read from."""
        # Columns by page id, as an object per pin would cost a pause whenever Python looks for
        # garbage.
        self._pins = array("q", bytes(8 * index.num_pages))
        """The number of each page's pin, by page id, which no other pin ever has; 0: not pinned."""
        self._num_lookups = array("i", bytes(4 * index.num_pages))
        """The number of lookups for which each page is kept, by page id."""
        self._last_pin = 0
        self._open: dict[LookupName, _Stage] = {}
        """The stages of lookups that are not final."""
        self._ended: OrderedDict[LookupName, _Stage] = OrderedDict()
        """The stages of final lookups, in the order in which their grace ends."""
        self._dismissed: deque[_Stage] = deque()
        """Stages that nobody wants any more: their pins are to end, a piece per turn."""

    def num_left(self, group: int) -> int:
        """The number of further pages of a KV group that may be filled and staged."""
        return self.max_pages[group] - len(self._pinned[group]) - self._num_filling[group]

    def count_filling(self, group: int, change: int) -> None:
        """Note that reads fill so many more pages of a KV group, or, below zero, fewer."""
        self._num_filling[group] += change

    @property
    def num_pins(self) -> int:
        """The number of pins in all KV groups."""
        return sum(map(len, self._pinned))

    @property
    def next_expiry_s(self) -> float | None:
        """The time at which the next lookup's grace ends; None if none waits for that."""
        return next(iter(self._ended.values())).until_s if self._ended else None

    @property
    def has_work(self) -> bool:
        """Whether pins are to end that did not fit into this turn."""
        return bool(self._dismissed)

    def add(self, name: LookupName, group: int, key: PageKey) -> None:
        """Keep the READY page of a key for a lookup that is not final."""
        page_id = self._pinned[group].find(key)
        if page_id is None:
            page_id = self._pin(group, key)
        self._keep(self._open.setdefault(name, _Stage()), page_id)

    def adopt(self, name: LookupName, page_ids: Iterable[HostPageId | None]) -> None:
        """Keep those of these pages that are staged for others for a lookup that has just come."""
        if not self.num_pins:
            return
        staged = [page_id for page_id in page_ids if page_id is not None and self._pins[page_id]]
        if staged:
            stage = self._open.setdefault(name, _Stage())
            for page_id in staged:
                self._keep(stage, page_id)

    def _keep(self, stage: _Stage, page_id: HostPageId) -> None:
        if self._pins[page_id] not in stage.pins:
            stage.pins[self._pins[page_id]] = page_id
            self._num_lookups[page_id] += 1

    def _pin(self, group: int, key: PageKey) -> HostPageId:
        page_id = self._index.find(group, key)
        assert page_id is not None
        self._index.pin(page_id)
        self._pinned[group].add(key, page_id)
        self._last_pin += 1
        self._pins[page_id] = self._last_pin
        self._num_lookups[page_id] = 0
        return page_id

    def end(self, name: LookupName, runs: Sequence[Sequence[PageKey]], now_s: float) -> None:
        """End a lookup: keep what is staged of these keys, a run per group, for some time.

        It does not matter for whom it was staged. Nothing else is kept for this lookup.
        """
        assert name not in self._ended
        stage = self._open.pop(name, _Stage())
        ended = _Stage(until_s=now_s + self._grace_s)
        for pinned, keys in zip(self._pinned, runs, strict=True):
            # What nobody has staged costs nothing here, however long the chain is.
            page_ids = map(pinned.find, keys) if len(pinned) else ()
            for page_id in page_ids:
                if page_id is None:
                    continue
                pin = self._pins[page_id]
                ended.pins[pin] = page_id
                if stage.pins.pop(pin, None) is None:
                    self._num_lookups[page_id] += 1
        if stage.pins:
            self._dismiss(stage)
        if ended.pins:
            self._ended[name] = ended

    def cancel(self, name: LookupName) -> None:
        """Keep nothing for this lookup any more, be it final or not."""
        self._dismiss(self._open.pop(name, None))
        self._dismiss(self._ended.pop(name, None))

    def forget(self, connection: ConnectionId) -> None:
        """Keep nothing for the lookups of a Scheduler whose connection is gone."""
        for stages in (self._open, self._ended):
            for name in [name for name in stages if name[0] == connection]:
                self._dismiss(stages.pop(name))

    def release(self, group: int, keys: Iterable[PageKey]) -> None:
        """Unpin those of a chain's pages that are staged, whoever they are kept for."""
        pinned = self._pinned[group]
        # What nobody has staged costs nothing here, however long the chain is.
        if not len(pinned):
            return
        page_ids = []
        for key in keys:
            page_id = pinned.find(key)
            if page_id is not None:
                pinned.remove(key)
                self._pins[page_id] = 0
                page_ids.append(page_id)
        self._index.unpin(page_ids)

    def expire(self, now_s: float) -> None:
        """End the pins that nobody wants any more; if they are many, only some of them."""
        while self._ended and next(iter(self._ended.values())).until_s <= now_s:
            self._dismiss(self._ended.popitem(last=False)[1])

        num_left = self._piece_pages
        while self._dismissed and num_left:
            stage = self._dismissed[0]
            while stage.pins and num_left:
                # From the tail on, so that the head counts as used last.
                self._drop(*stage.pins.popitem())
                num_left -= 1
            if not stage.pins:
                self._dismissed.popleft()

    def _dismiss(self, stage: _Stage | None) -> None:
        if stage is not None:
            self._dismissed.append(stage)

    def _drop(self, pin: int, page_id: HostPageId) -> None:
        # The pin may have been released, and the page pinned anew or even handed out again.
        if self._pins[page_id] != pin:
            return
        self._num_lookups[page_id] -= 1
        if self._num_lookups[page_id] == 0:
            name = self._index.name(page_id)
            assert name is not None, "a pinned page keeps its name"
            self.release(name[0], (name[1],))

    def check(self) -> None:
        """Raises AccountingError unless each pin is kept for as many lookups as it says."""
        stages = (*self._open.values(), *self._ended.values(), *self._dismissed)
        num_lookups = Counter(pin for stage in stages for pin in stage.pins)
        for pinned in self._pinned:
            for page_id in pinned.page_ids():
                counted, kept = num_lookups[self._pins[page_id]], self._num_lookups[page_id]
                if counted != kept or not kept:
                    raise AccountingError(
                        f"host page {page_id} is staged for {counted} lookups; {kept} on record"
                    )
