"""Fetching pages into L2 from one place: L3, or the L2 of another node."""

from collections import Counter, deque
from dataclasses import dataclass

from raydix.ids import BatchId, HostPageId
from raydix.runtime.cache.host.chain_touches import ChainTouches
from raydix.runtime.cache.host.events import HostEffect
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.lookups import HostLookups
from raydix.runtime.cache.host.pins import HostPins
from raydix.runtime.cache.host.reads import HostReads
from raydix.runtime.cache.host.settings import HostSettings
from raydix.runtime.cache.host.staged_pages import StagedPages
from raydix.runtime.cache.host.storage_orders import StorageOrders
from raydix.runtime.cache.host.storage_probes import StorageProbes
from raydix.runtime.messages.host import ObjectsDone, PageSource

_PIECE = 256
"""The number of overdue batches that are given up with one event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all places have in common from which pages are fetched into one L2."""

    index: HostIndex
    pins: HostPins
    staged: StagedPages
    touches: ChainTouches
    effects: list[HostEffect]
    counters: Counter[str]


class Fetching:
    """Owns: the orders that one place is given, and lookups, reads and probes, which give them."""

    def __init__(
        self,
        settings: HostSettings,
        shared: Shared,
        *,
        label: str,
        brings: PageSource,
        is_in_use: bool,
    ) -> None:
        """Start with nothing under way. `label`: what reads are counted under."""
        index, staged = shared.index, shared.staged
        effects, counters = shared.effects, shared.counters
        self.orders = StorageOrders(
            settings.storage, index.page_bytes, effects, counters, is_in_use=is_in_use
        )
        self.reads = HostReads(index, staged, self.orders, effects, counters, label=label)
        self.lookups = HostLookups(
            settings,
            index,
            staged,
            self.orders,
            self.reads,
            counters,
            touches=shared.touches,
            pins=shared.pins,
            brings=brings,
        )
        self._probes = StorageProbes(index, self.reads, self.orders, effects)
        self._overdue: deque[BatchId] = deque()
        """Batches that are to be given up, some at a time."""

    @property
    def has_work(self) -> bool:
        """Whether a `Tick` would go on with what did not fit into this turn."""
        return bool(self._overdue or self.lookups.has_work)

    @property
    def next_deadline_s(self) -> float | None:
        """The time at which time alone changes something; None: never."""
        times = [self.orders.next_overdue_s, self._probes.next_due_s]
        return min((time_s for time_s in times if time_s is not None), default=None)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way: no event of another place changes anything here, nor does
        time.
        """
        is_waiting = self._overdue or self._probes.is_starved or not self.lookups.is_idle
        return not is_waiting and self.next_deadline_s is None

    def lose(self) -> list[HostPageId]:
        """Forget whoever was given orders, who is gone: lookups end with what has come.

        Returns the pages that may still be written, which are the caller's now.
        """
        self.orders.lose()
        return self.lookups.lose() + self._probes.lose()

    def finish(self, done: ObjectsDone, now_s: float) -> None:
        """Take the answer to a question, read or probe, of which the orders know by now."""
        self._probes.finish(done)
        self.lookups.finish(done, now_s)

    def give_up_some(self, now_s: float) -> list[BatchId]:
        """Give up some of what is overdue; returns these batches."""
        self._overdue.extend(self.orders.take_overdue(now_s))
        given_up = [self._overdue.popleft() for _ in range(min(_PIECE, len(self._overdue)))]
        for batch_id in given_up:
            self.lookups.give_up(batch_id)
        return given_up

    def dispatch(self, now_s: float) -> None:
        """Order what may be ordered."""
        self._probes.dispatch(now_s)
        self.lookups.dispatch(now_s)
