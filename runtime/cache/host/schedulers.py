"""The Schedulers that use one HostMemory, each over a connection of its own."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from raydix.errors import AccountingError
from raydix.ids import ConnectionId, HostPageId, SchedulerName
from raydix.runtime.cache.host.events import ToScheduler
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.pages import HostPageState
from raydix.runtime.cache.host.scheduler_side import SchedulerSide
from raydix.runtime.messages.arrays import Int32Array
from raydix.runtime.messages.host import FromHost, PagesGranted, StorageStatus


@dataclass(frozen=True, slots=True)
class FormerArena:
    """An arena that is taken back: what the HostMemory that had it has left there."""

    generations: Int32Array
    """Its table, which goes on from where it is."""
    users: Collection[SchedulerName]
    """The Schedulers whose copies may still be in flight: all that have attached and not ended."""


class Schedulers:
    """Owns: which Schedulers are attached, and whether pages may be handed out at all.

    A Scheduler is known by its name, so one that connects again is told from another one. Copies
    that it ordered over an earlier connection may still be in flight until it says that they are
    drained. A Scheduler that has never been there has none. Of an arena that was taken back nobody
    knows who may still copy into which page, so nobody gets a page before all Schedulers that have
    used it have said so, or have ended.
    """

    def __init__(
        self,
        index: HostIndex,
        fair_share: Sequence[int],
        piece_pages: int,
        counters: Counter[str],
        *,
        former_users: Collection[SchedulerName],
    ) -> None:
        """Start with nobody attached. `former_users`: see `FormerArena`.

        `fair_share`: pages per KV group, if each has as many slabs.
        """
        self._index = index
        self._fair_share = fair_share
        self._piece_pages = piece_pages
        self._counters = counters
        self._awaited = set(former_users)
        """Former users that may still copy by orders to which no connection is on record."""
        self._sides: dict[ConnectionId, SchedulerSide] = {}
        self._known = set(former_users)
        """Schedulers that have attached to this arena at any time, and have not ended."""

    @property
    def attached(self) -> Collection[SchedulerSide]:
        """The sides of those that are attached, in the order in which they came."""
        return self._sides.values()

    @property
    def is_handing_out(self) -> bool:
        """Whether no page can be touched by an order to which no connection is on record."""
        return not self._awaited

    @property
    def has_work(self) -> bool:
        """Whether some mirror is not complete yet."""
        return any(side.mirror.has_work for side in self.attached)

    @property
    def num_granted(self) -> int:
        """The number of pages that are granted to any of them."""
        return sum(side.grants.num_pages for side in self.attached)

    def figures(self) -> dict[str, int]:
        """What all of them together have of L2."""
        num_leases = sum(side.leases.num_leases for side in self.attached)
        return {"pages_granted": self.num_granted, "leases": num_leases}

    @property
    def num_pins(self) -> int:
        """The number of pins of all leases; O(leases)."""
        return sum(side.leases.num_pins for side in self.attached)

    def is_attached(self, connection: ConnectionId | None) -> bool:
        """Whether this connection is there, and no later one has replaced it."""
        return connection in self._sides

    def of(self, connection: ConnectionId) -> SchedulerSide:
        """The side of a connection that is there."""
        return self._sides[connection]

    def named(self, name: SchedulerName) -> SchedulerSide | None:
        """The side of the Scheduler of this name; None if it is not attached."""
        return next((side for side in self.attached if side.name == name), None)

    def attach(self, connection: ConnectionId, name: SchedulerName) -> None:
        """A Scheduler has connected, whose earlier connection, if any, is removed by now."""
        side = SchedulerSide(
            connection,
            name,
            index=self._index,
            fair_share=self._fair_share,
            piece_pages=self._piece_pages,
            counters=self._counters,
        )
        if name not in self._known:
            side.drain()
        self._known.add(name)
        self._sides[connection] = side

    def remove(self, side: SchedulerSide) -> None:
        """Forget a connection that is gone; the caller takes its grants and leases."""
        del self._sides[side.connection]

    def end(self, name: SchedulerName) -> None:
        """A Scheduler that is not attached has ended for good, and nothing copies for it."""
        self._known.discard(name)
        self._awaited.discard(name)

    def drain(self, side: SchedulerSide) -> None:
        """Note that no copy is in flight that a Scheduler ordered over earlier connections."""
        side.drain()
        self._awaited.discard(side.name)

    def inform(
        self, status: StorageStatus, news: Sequence[FromHost], is_walking: bool
    ) -> list[ToScheduler]:
        """What each is told: of L3 if that has changed, all news, and keys that it was not told."""
        told: list[tuple[ConnectionId, FromHost]] = []
        for side in self.attached:
            if side.learn(status):
                told.append((side.connection, status))
            told += [(side.connection, each) for each in news]
            if is_walking:
                told += [(side.connection, each) for each in side.mirror.take_piece()]
        return [ToScheduler(connection, message) for connection, message in told]

    def fill_up(self) -> list[tuple[SchedulerSide, PagesGranted]]:
        """Grant what their stocks lack, first to those that have least.

        All have equal shares of one stock. Whoever has more than its share, since another one has
        come, gets nothing until it has used that up; the other one gets its share at once.
        """
        if not self.is_handing_out:
            return []
        num_sharing = len(self._sides)
        short = [
            side
            for side in self._sides.values()
            if side.is_drained and side.grants.is_short(num_sharing)
        ]
        short.sort(key=_num_granted)
        return [(side, grant) for side in short for grant in side.grants.fill_up(num_sharing)]

    def check(self) -> None:
        """Prove that no page is granted twice, or while it is not FILLING, and check leases.

        Raises AccountingError with the page.
        """
        granted: set[HostPageId] = set()
        for side in self.attached:
            side.leases.check()
            page_ids = side.grants.page_ids()
            twice = [page_id for page_id, num in Counter(page_ids).items() if num > 1]
            twice += granted.intersection(page_ids)
            if not twice and self._index.are_all(page_ids, HostPageState.FILLING):
                granted.update(page_ids)
                continue

            for page_id in page_ids:
                state = self._index.state(page_id)
                if page_id in twice or state is not HostPageState.FILLING:
                    raise AccountingError(
                        f"host page {page_id} is granted to {side.name} while it is {state.name}"
                        f"{' and granted to another' if page_id in twice else ''}"
                    )


def _num_granted(side: SchedulerSide) -> int:
    return side.grants.num_pages
