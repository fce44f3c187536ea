"""What is in each host page of a modelled arena, and who copies from and to it."""

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass

from raydix.ids import HostPageId, LeaseId, PageKey, SchedulerName
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.pages import HostPageState
from raydix.runtime.cache.page_key import split_keys
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.host import (
    AbandonPages,
    AskExists,
    CommitPages,
    DeleteObjects,
    ObjectStatus,
    ReadObjects,
    WriteObjects,
)
from tests.runtime.cache.host.scheduler_end import FIRST, SECOND

OK, MISSING = ObjectStatus.OK, ObjectStatus.MISSING
Order = AskExists | ReadObjects | WriteObjects | DeleteObjects
Name = tuple[int, PageKey]
"""Group and key."""
Read = tuple[int, Name]
"""A page that somebody reads, and what it must hold until then."""
Holder = int | SchedulerName
"""Who is out of reach: a process, or orders of a Scheduler's lost connections."""

GARBAGE: Name = (-1, PageKey(b""))


def ready_names(index: HostIndex) -> set[Name]:
    """All that L2 holds."""
    pages = index.ready_pages(0, index.num_pages)
    return {name for page_id in pages if (name := index.name(page_id)) is not None}


def ready_keys(index: HostIndex, group: int) -> set[PageKey]:
    """What L2 holds of one group."""
    return {key for owner, key in ready_names(index) if owner == group}


@dataclass(slots=True)
class Copy:
    """A backup that a rank group carries out, each process its part of the page."""

    name: Name
    page: int
    generation: int

    @property
    def commit(self) -> CommitPages:
        """What the Scheduler says when it is done."""
        group, key = self.name
        pages, generations = int32_array([self.page]), int32_array([self.generation])
        return CommitPages(keys=key, host_page_ids=pages, generations=generations, group=group)


class RankGroup:
    """Owns: the processes that copy together, and what they copy. Pids are never used again."""

    def __init__(self, num_processes: int, first_pid: int = 1000) -> None:
        self._next_pid = first_pid
        self.pids = [self._new_pid() for _ in range(num_processes)]
        self.copies: list[Copy] = []
        """Backups under way."""
        self.past_copies: list[Copy] = []
        """Backups that have ended, well or not; a late word about one must change nothing."""
        self.leases: dict[int, list[Read]] = {}

    def _new_pid(self) -> int:
        self._next_pid += 1
        return self._next_pid

    def replace(self, place: int) -> None:
        """A process dies, and another one comes."""
        self.pids[place % len(self.pids)] = self._new_pid()

    def finish(self, place: int) -> Copy:
        """A backup is done."""
        copy = self.copies.pop(place)
        self.past_copies.append(copy)
        return copy

    @property
    def reads(self) -> list[Read]:
        """What is leased."""
        return [entry for held in self.leases.values() for entry in held]

    def abandonment(self) -> AbandonPages:
        """What the Scheduler says when the group is out of reach."""
        return AbandonPages(
            host_page_ids=int32_array(copy.page for copy in self.copies),
            generations=int32_array(copy.generation for copy in self.copies),
            lease_ids=int32_array(self.leases),
            pids=tuple(self.pids),
        )

    def forget(self) -> None:
        """The Scheduler cannot tell any more how far the copies are."""
        self.past_copies.extend(self.copies)
        self.copies.clear()
        self.leases.clear()


@dataclass(slots=True)
class Engine:
    """One Scheduler, as far as the world goes, and the rank group that it commands."""

    name: SchedulerName
    ranks: RankGroup
    is_attached: bool = False
    is_drained: bool = True
    """Whether no copy is in flight that was ordered over an earlier connection."""
    next_lease: int = 0

    def new_lease(self) -> LeaseId:
        """The number of a lease that is about to be asked for; the other Scheduler has it, too."""
        self.next_lease += 1
        return LeaseId(self.next_lease)

    def lose_sight_of_connection(self, memory: "Memory") -> None:
        """The connection is gone, over which copies were ordered that go on."""
        self.lose_sight_of_copies(memory, [self.name])
        self.is_drained = False

    def lose_sight_of_copies(self, memory: "Memory", holders: Iterable[Holder]) -> None:
        """What the ranks copy goes on, out of reach."""
        pages = [copy.page for copy in self.ranks.copies]
        for holder in holders:
            memory.lose_sight(holder, pages, self.ranks.reads)
        self.ranks.forget()


def make_engines(num_processes: int) -> tuple[Engine, Engine]:
    """The first engine, and a second one."""
    return (
        Engine(FIRST, RankGroup(num_processes)),
        Engine(SECOND, RankGroup(num_processes, first_pid=5000)),
    )


def ended_pids(memory: "Memory", engines: Iterable[Engine]) -> list[int]:
    """Processes out of reach that no rank group counts on any more."""
    alive = {pid for engine in engines for pid in engine.ranks.pids}
    return [pid for pid in memory.pids if pid not in alive]


class FlushWatch:
    """Owns: which pages a flush must drop in the end."""

    def __init__(self, index: HostIndex) -> None:
        self._index = index
        self.left: set[tuple[int, int]] = set()
        """Pages, by generation, READY when a flush was last asked for and read by nobody since."""

    def _ready(self) -> dict[tuple[int, int], int]:
        index = self._index
        return {
            (page, index.generation(page)): index._pages.num_readers(page)
            for page in index.ready_pages(0, index.num_pages)
        }

    def start(self) -> None:
        """A flush is asked for."""
        self.left |= set(self._ready())

    def look(self) -> None:
        """Pass over those that are gone or read."""
        ready = self._ready()
        self.left = {name for name in self.left if ready.get(name) == 0}


class Memory:
    """Owns: the content of pages, and what those out of reach may still write or read."""

    def __init__(self) -> None:
        self.content: dict[int, Name] = {}
        self._written: dict[Holder, set[int]] = {}
        self._read: dict[Holder, list[Read]] = {}

    @property
    def holders(self) -> set[Holder]:
        """The holders that are out of reach."""
        return set(self._written)

    @property
    def pids(self) -> list[int]:
        """Processes out of reach."""
        return sorted(pid for pid in self._written if isinstance(pid, int))

    @property
    def may_be_written(self) -> set[int]:
        """Pages that somebody out of reach may write at any time."""
        return set().union(*self._written.values())

    def lose_sight(self, holder: Holder, written: Iterable[int], read: Iterable[Read]) -> None:
        """A holder is out of reach while it writes and reads these pages."""
        self._written.setdefault(holder, set()).update(written)
        self._read.setdefault(holder, []).extend(read)

    def end(self, holder: Holder) -> None:
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
                names = [(order.group, key) for key in split_keys(order.keys)]
                self.lose_sight(pid, (), zip(pages, names, strict=True))
        self.lose_sight(pid, (), ())

    def carry_out(
        self, order: Order, objects: set[Name], luck: Callable[[], ObjectStatus]
    ) -> list[ObjectStatus]:
        """What storage, holding `objects`, does and answers; `luck` gives each page's status."""
        if isinstance(order, DeleteObjects):
            objects.clear()
            return [ObjectStatus.OK]
        names = [(order.group, key) for key in split_keys(order.keys)]
        if isinstance(order, AskExists):
            return [luck() or (OK if name in objects else MISSING) for name in names]
        move = self._read_one if isinstance(order, ReadObjects) else self._write_one
        pages = order.host_page_ids.tolist()
        return [move(page, name, objects, luck()) for page, name in zip(pages, names, strict=True)]

    def _read_one(
        self, page: int, name: Name, objects: set[Name], drawn: ObjectStatus
    ) -> ObjectStatus:
        is_read = not drawn and name in objects
        self.content[page] = name if is_read else GARBAGE
        return drawn if drawn or is_read else MISSING

    def _write_one(
        self, page: int, name: Name, objects: set[Name], drawn: ObjectStatus
    ) -> ObjectStatus:
        assert self.content[page] == name, "a page changed while it was written"
        if not drawn:
            objects.add(name)
        return drawn

    def check_ready(self, index: HostIndex) -> None:
        """Every READY page holds what its key names."""
        for name in ready_names(index):
            page = index.find(*name)
            assert page is not None
            assert self.content[page] == name

    def check_reads(self, index: HostIndex, reads: Iterable[Read]) -> None:
        """Nothing that is being read has changed, nor may it."""
        for page, name in (*reads, *(read for held in self._read.values() for read in held)):
            assert self.content[page] == name
            assert index.name(HostPageId(page)) == name

    def check_writable(self, index: HostIndex, granted: Set[int], orders: Iterable[Order]) -> None:
        """What may be written from outside is in nobody else's hands."""
        reads = [order for order in orders if isinstance(order, ReadObjects)]
        being_read = {page for order in reads for page in order.host_page_ids.tolist()}
        assert not granted & (self.may_be_written | being_read)
        assert {index.state(HostPageId(page)) for page in being_read} <= {HostPageState.FILLING}
        states = {index.state(HostPageId(page)) for page in self.may_be_written}
        assert states <= {HostPageState.QUARANTINED}
