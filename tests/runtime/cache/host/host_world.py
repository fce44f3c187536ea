"""What is in each host page of a modelled arena, and who can still change it."""

from collections.abc import Callable, Iterable, Mapping

from raydix.ids import HostPageId, PageKey
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.pages import PageState
from raydix.runtime.messages.host import (
    DeleteObjects,
    FindObjects,
    ObjectStatus,
    ReadObjects,
    WriteObjects,
    split_keys,
)

OK, MISSING = ObjectStatus.OK, ObjectStatus.MISSING
Order = FindObjects | ReadObjects | WriteObjects | DeleteObjects
Read = tuple[int, PageKey]
"""A page that somebody reads, and what it must hold until then."""

GARBAGE = PageKey(b"garbage".ljust(32, b"!"))


class Memory:
    """Owns: the content of pages, and what those out of reach may still write or read.

    A holder is a process, or None: orders of lost connections of the Scheduler.
    """

    def __init__(self) -> None:
        self.content: dict[int, PageKey] = {}
        self._written: dict[int | None, set[int]] = {}
        self._read: dict[int | None, list[Read]] = {}

    @property
    def holders(self) -> set[int | None]:
        """Those out of reach."""
        return set(self._written)

    @property
    def pids(self) -> list[int]:
        """Processes out of reach."""
        return sorted(pid for pid in self._written if pid is not None)

    @property
    def may_be_written(self) -> set[int]:
        """Pages that somebody out of reach may write at any time."""
        return set().union(*self._written.values())

    def lose_sight(self, holder: int | None, written: Iterable[int], read: Iterable[Read]) -> None:
        """A holder is out of reach while it writes and reads these pages."""
        self._written.setdefault(holder, set()).update(written)
        self._read.setdefault(holder, []).extend(read)

    def end(self, holder: int | None) -> None:
        """The holder touches nothing any more; one that held nothing changes nothing."""
        self._written.pop(holder, None)
        self._read.pop(holder, None)

    def spoil(self) -> None:
        """Whoever is out of reach writes all that it may."""
        for page in self.may_be_written:
            self.content[page] = GARBAGE

    def lose_sight_of_orders(self, pid: int, orders: Iterable[Order]) -> None:
        """A storage actor is out of reach while it carries these out."""
        for order in orders:
            if isinstance(order, ReadObjects):
                self.lose_sight(pid, order.host_page_ids.tolist(), ())
            elif isinstance(order, WriteObjects):
                pages = order.host_page_ids.tolist()
                self.lose_sight(pid, (), zip(pages, split_keys(order.keys), strict=True))
        self.lose_sight(pid, (), ())

    def carry_out(
        self, order: Order, objects: set[PageKey], luck: Callable[[], ObjectStatus]
    ) -> list[ObjectStatus]:
        """What storage, which holds `objects`, does and answers; `luck` says of each page whether
        it is OK.
        """
        if isinstance(order, DeleteObjects):
            objects.clear()
            return [ObjectStatus.OK]
        keys = split_keys(order.keys)
        if isinstance(order, FindObjects):
            return [luck() or (OK if key in objects else MISSING) for key in keys]
        move = self._read_one if isinstance(order, ReadObjects) else self._write_one
        pages = order.host_page_ids.tolist()
        return [move(page, key, objects, luck()) for page, key in zip(pages, keys, strict=True)]

    def _read_one(
        self, page: int, key: PageKey, objects: set[PageKey], drawn: ObjectStatus
    ) -> ObjectStatus:
        is_read = not drawn and key in objects
        self.content[page] = key if is_read else GARBAGE
        return drawn if drawn or is_read else MISSING

    def _write_one(
        self, page: int, key: PageKey, objects: set[PageKey], drawn: ObjectStatus
    ) -> ObjectStatus:
        assert self.content[page] == key, "a page changed while it was written"
        if not drawn:
            objects.add(key)
        return drawn

    def check_reads(self, reads: Iterable[Read]) -> None:
        """Nothing that is being read has changed."""
        for page, key in (*reads, *(read for held in self._read.values() for read in held)):
            assert self.content[page] == key

    def check_writable(
        self, index: HostIndex, granted: Mapping[int, int], orders: Iterable[Order]
    ) -> None:
        """What may be written from outside is in nobody else's hands."""
        reads = [order for order in orders if isinstance(order, ReadObjects)]
        being_read = {page for order in reads for page in order.host_page_ids.tolist()}
        assert not granted.keys() & (self.may_be_written | being_read)
        assert {index.state(HostPageId(page)) for page in being_read} <= {PageState.FILLING}
        states = {index.state(HostPageId(page)) for page in self.may_be_written}
        assert states <= {PageState.QUARANTINED}
