"""The HostMemory core, a real arena and a worker on a backend: bytes make the whole round."""

import queue
from pathlib import Path

import pytest

from raydix.ids import ConnectionId, HostPageId, LeaseId, LookupId, SchedulerName
from raydix.runtime.cache.host.core import HostMemoryCore
from raydix.runtime.cache.host.events import (
    FlushHost,
    FlushStorage,
    FromScheduler,
    FromStorage,
    HostEvent,
    SchedulerAttached,
    SetGenerations,
    StorageAttached,
    StorageFlushed,
    ToScheduler,
    ToStorage,
)
from raydix.runtime.cache.host.settings import HostSettings, StorageSettings
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.host import (
    CommitPages,
    LeasePages,
    Lookup,
    LookupProgress,
    ObjectsDone,
    ObjectStatus,
    PagesGranted,
    PagesLeased,
    PageSource,
    ReleaseLeases,
)
from raydix.runtime.storage.backend import StorageBackend
from raydix.runtime.storage.backends.fake import FakeBackend, Faults
from raydix.runtime.storage.backends.file import FileBackend
from raydix.runtime.storage.worker.worker import StorageWorker
from raydix.runtime.testing.order_queue import OrderQueue
from raydix.runtime.tiers.host_arena import HostArena
from tests.runtime.storage.stores import LAYOUT, NAMESPACE, FileStore, content, make_key

SCHEDULER, STORAGE = ConnectionId(1), ConnectionId(2)


class Node:
    """One node in one process; its clock stands still unless it is moved."""

    def __init__(self, backend: StorageBackend, num_pages: int = 64) -> None:
        self.arena = HostArena.create(LAYOUT, num_pages * LAYOUT.host_page_bytes(0), num_threads=1)
        settings = HostSettings(
            page_size=LAYOUT.page_size,
            storage=StorageSettings(min_tokens=4, batch_pages=4, breaker_failures=1000),
        )
        self.core = HostMemoryCore(self.arena.geometry, settings)

        self.answers: queue.Queue[ObjectsDone] = queue.Queue()
        self.worker = StorageWorker(backend, self.arena, NAMESPACE, self.answers.put)
        self.orders = OrderQueue()
        self.worker.serve(self.orders, self.orders.descriptor)
        self.granted: list[tuple[int, int]] = []
        self.num_asked = 0
        self.heard: dict[int, LookupProgress] = {}
        self.leased: list[HostPageId] = []
        self.flushed: list[ObjectStatus] = []
        self.now_s = 0.0

        self.tell(SchedulerAttached(SCHEDULER, SchedulerName("engine")))
        self.tell(StorageAttached(STORAGE, 1))

    def tell(self, event: HostEvent) -> None:
        for effect in self.core.handle(event, self.now_s):
            match effect:
                case SetGenerations(pages, generations):
                    self.arena.generations[pages] = generations
                case ToStorage(_, order):
                    self.orders.put(order)
                case ToScheduler(_, PagesGranted() as grant):
                    self.granted.extend(
                        zip(grant.host_page_ids.tolist(), grant.generations.tolist(), strict=True)
                    )
                case ToScheduler(_, LookupProgress() as progress):
                    self.heard[progress.lookup_id] = progress
                case ToScheduler(_, PagesLeased() as leased):
                    (pages,), (generations,) = leased.host_page_ids, leased.generations
                    assert self.arena.generations[pages].tolist() == generations.tolist()
                    self.leased = [HostPageId(page) for page in pages.tolist()]
                case StorageFlushed(status):
                    self.flushed.append(status)

        self.core.check()

    def settle(self) -> None:
        """Wait until storage has answered everything."""
        while self.core.stats()["lookups"] or not self.core.is_drained:
            self.tell(FromStorage(STORAGE, self.answers.get(timeout=30)))

    def commit(self, names: range) -> None:
        for name in names:
            page, generation = self.granted.pop(0)
            self.arena.payload(HostPageId(page), 0)[:] = content(name)
            pages, generations = int32_array([page]), int32_array([generation])
            commit = CommitPages(keys=make_key(name), host_page_ids=pages, generations=generations)
            self.tell(FromScheduler(SCHEDULER, commit))

    def fetch(self, names: range) -> list[PageSource]:
        """Look up, wait, lease, compare every byte that can be had."""
        keys = b"".join(map(make_key, names))
        self.num_asked += 1
        asked = self.num_asked
        self.tell(
            FromScheduler(
                SCHEDULER, Lookup(lookup_id=LookupId(asked), keys=keys, num_l1_pages=(0,))
            )
        )

        self.settle()
        self.tell(
            FromScheduler(SCHEDULER, LeasePages(lease_id=LeaseId(asked), keys=keys, starts=(0,)))
        )
        for name, page in zip(names, self.leased, strict=False):
            assert bytes(self.arena.payload(page, 0)) == content(name)
        sources = [PageSource(code) for code in self.heard[asked].sources[0]]
        assert len(self.leased) >= sum(
            source in (PageSource.L2, PageSource.L3) for source in sources
        )
        self.tell(FromScheduler(SCHEDULER, ReleaseLeases(lease_ids=int32_array([asked]))))
        return sources

    def close(self) -> None:
        self.orders.end()
        self.worker.close()
        self.orders.close()
        self.arena.close()


def test_flushed_l2_is_filled_again_from_files(tmp_path: Path) -> None:
    node = Node(FileBackend(tmp_path))
    node.commit(range(12))
    node.settle()
    assert node.fetch(range(12)) == [PageSource.L2] * 12
    node.tell(FlushHost())
    assert node.fetch(range(12)) == [PageSource.L3] * 12
    assert node.fetch(range(12)) == [PageSource.L2] * 12
    node.close()


def test_pages_outlive_the_arena_in_files(tmp_path: Path) -> None:
    node = Node(FileBackend(tmp_path))
    node.commit(range(8))
    node.settle()
    node.close()
    again = Node(FileBackend(tmp_path))
    assert again.fetch(range(10)) == [PageSource.L3] * 8 + [PageSource.NOT_FOUND] * 2
    again.close()


def test_page_gone_from_the_middle_leaves_the_prefix_before_it(tmp_path: Path) -> None:
    node = Node(FileBackend(tmp_path))
    node.commit(range(8))
    node.settle()
    node.tell(FlushHost())
    FileStore(tmp_path).path(5).unlink()
    assert node.fetch(range(8)) == [PageSource.L3] * 5 + [PageSource.NOT_FOUND] * 3
    node.close()


def test_damaged_file_is_a_counted_miss(tmp_path: Path) -> None:
    node = Node(FileBackend(tmp_path))
    node.commit(range(8))
    node.settle()
    node.tell(FlushHost())
    path = FileStore(tmp_path).path(2)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert node.fetch(range(8)) == [PageSource.L3] * 2 + [PageSource.BAD_OBJECT] * 6
    assert node.core.stats()["l3_reads_bad_checksum"] == 1
    assert not path.exists()
    node.close()


def test_flush_of_l3_removes_the_objects(tmp_path: Path) -> None:
    node = Node(FileBackend(tmp_path))
    node.commit(range(4))
    node.tell(FlushStorage())
    while not node.flushed:
        node.tell(FromStorage(STORAGE, node.answers.get(timeout=30)))
    node.tell(FlushHost())
    assert node.flushed == [ObjectStatus.OK]
    assert node.fetch(range(4)) == [PageSource.NOT_FOUND] * 4
    node.close()


@pytest.mark.parametrize("seed", range(5))
def test_failing_storage_never_gives_wrong_bytes(seed: int) -> None:
    faults = Faults(seed=seed, max_delay_s=0.0005, failure_fraction=0.3, corrupt_fraction=0.1)
    node = Node(FakeBackend(faults=faults), num_pages=32)
    sources = []
    for turn in range(20):
        first = turn % 4 * 8
        node.commit(range(first, first + 8))
        sources += node.fetch(range(8))
        node.tell(FlushHost())
    assert PageSource.L3 in sources
    assert {PageSource.IO_ERROR, PageSource.BAD_OBJECT} & set(sources)
    node.close()
