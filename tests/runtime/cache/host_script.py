"""A scripted world around the HostMemory core: it carries out effects, and answers for the storage actor on demand."""

from collections import deque

from raydix.ids import LeaseId, PageKey, RequestId
from raydix.runtime.cache.arena_geometry import ArenaGeometry
from raydix.runtime.cache.host_events import (
    FromScheduler,
    FromStorage,
    HostEvent,
    HostSettings,
    SchedulerAnswer,
    SchedulerMessage,
    SetGenerations,
    StorageFlushed,
    StorageOrder,
    StorageRetired,
    StorageSettings,
    ToScheduler,
    ToStorage,
    WatchProcess,
)
from raydix.runtime.cache.host_memory import HostMemoryCore
from raydix.runtime.messages.arrays import Int32Array, int32_array
from raydix.runtime.messages.host import (
    CancelBatch,
    CommitPages,
    DeleteObjects,
    FindObjects,
    LeasePages,
    Lookup,
    LookupProgress,
    MirrorUpdate,
    ObjectsDone,
    ObjectStatus,
    PagesGranted,
    PagesLeased,
    PageSource,
    ReadObjects,
    ReleaseLeases,
    StorageStatus,
    WriteObjects,
    split_keys,
)

PAGE_SIZE = 16
STORAGE = StorageSettings(min_tokens=2 * PAGE_SIZE, batch_pages=4, max_read_batches=2, breaker_failures=2)


def make_key(name: int | str) -> PageKey:
    """The name comes first, as mirrors know the first half of a key only."""
    return PageKey(str(name).encode().ljust(32, b"."))


def make_keys(names: "range | list[int] | list[str]") -> bytes:
    return b"".join(make_key(name) for name in names)


class HostScript:
    """`now_s` moves by hand; `orders` holds what storage was asked and has not answered, oldest first."""

    def __init__(
        self, num_pages: int = 64, storage: StorageSettings | None = None, generations: Int32Array | None = None
    ) -> None:
        geometry = ArenaGeometry(
            num_slabs=1,
            slab_bytes=128 * num_pages,
            slabs_offset=4096,
            pages_per_slab=num_pages,
            page_bytes=(128,),
            payload_bytes=(64,),
        )
        settings = HostSettings(
            page_size=PAGE_SIZE, incarnation=3, storage=storage or STORAGE, has_storage=storage is not None
        )
        self.core = HostMemoryCore(geometry, settings, generations)
        self.now_s = 100.0
        self.table = dict.fromkeys(range(num_pages), 0)
        self.granted: deque[tuple[int, int]] = deque()
        self.mirror: set[bytes] = set()
        self.progress: dict[str, list[LookupProgress]] = {}
        self.leased: dict[int, PagesLeased] = {}
        self.orders: deque[FindObjects | ReadObjects | WriteObjects | DeleteObjects] = deque()
        self.cancelled: list[int] = []
        self.watched: list[int] = []
        self.flushed: list[ObjectStatus] = []
        self.objects: dict[PageKey, ObjectStatus] = {}
        """What storage answers for each key: OK, or how it fails; absent keys are MISSING."""
        self.num_retirements = 0
        self.knows_storage: bool | None = None
        """What the Scheduler has heard of L3."""

    def tell(self, event: HostEvent) -> None:
        """Hand an event to the core, carry out what it says, and prove its accounts."""
        for effect in self.core.handle(event, self.now_s):
            match effect:
                case SetGenerations(pages, generations):
                    self.table.update(zip(pages.tolist(), generations.tolist(), strict=True))
                case ToScheduler(message):
                    self._hear(message)
                case ToStorage(order):
                    self._order(order)
                case WatchProcess(pid):
                    self.watched.append(pid)
                case StorageFlushed(status):
                    self.flushed.append(status)
                case StorageRetired():
                    self.num_retirements += 1
        self.core.check()

    def _hear(self, message: SchedulerAnswer) -> None:
        match message:
            case StorageStatus():
                self.knows_storage = message.is_in_use
            case PagesGranted():
                pairs = list(zip(message.host_page_ids.tolist(), message.generations.tolist(), strict=True))
                assert all(self.table[page] == generation for page, generation in pairs), "granted before the table"
                self.granted.extend(pairs)
            case PagesLeased():
                self.leased[message.lease_id] = message
            case MirrorUpdate():
                self.mirror.difference_update(split_keys(message.dropped, 16))
                self.mirror.update(split_keys(message.ready, 16))
            case LookupProgress():
                reports = self.progress.setdefault(message.request_id, [])
                assert not reports or not reports[-1].is_final, "a report after the final one"
                assert message.is_final == (PageSource.PENDING not in message.sources)
                reports.append(message)

    def _order(self, order: StorageOrder) -> None:
        if isinstance(order, CancelBatch):
            self.cancelled.append(order.batch_id)
        else:
            self.orders.append(order)

    def say(self, message: SchedulerMessage) -> None:
        """The Scheduler says something."""
        self.tell(FromScheduler(message))

    def answer(self, index: int = 0) -> FindObjects | ReadObjects | WriteObjects | DeleteObjects:
        """Storage carries out an order, out of turn if `index` is not 0."""
        order = self.orders[index]
        del self.orders[index]
        match order:
            case DeleteObjects():
                self.objects.clear()
                statuses = bytes([ObjectStatus.OK])
            case WriteObjects():
                keys = split_keys(order.keys)
                statuses = bytes(self.objects.setdefault(key, ObjectStatus.OK) for key in keys)
            case FindObjects():
                exist = [self.objects.get(key, ObjectStatus.MISSING) for key in split_keys(order.keys)]
                statuses = bytes(
                    ObjectStatus.MISSING if status is ObjectStatus.MISSING else ObjectStatus.OK for status in exist
                )
            case ReadObjects():
                statuses = bytes(self.objects.get(key, ObjectStatus.MISSING) for key in split_keys(order.keys))
        if order.batch_id in self.cancelled:
            statuses = bytes([ObjectStatus.CANCELLED]) * len(statuses)
        self.tell(FromStorage(ObjectsDone(batch_id=order.batch_id, statuses=statuses)))
        return order

    def answer_all(self) -> None:
        """Storage carries out everything, in order."""
        while self.orders:
            self.answer()

    def store(self, names: "range | list[int] | list[str]", status: ObjectStatus = ObjectStatus.OK) -> None:
        """Objects that exist in L3; reading them gives `status`."""
        self.objects.update({make_key(name): status for name in names})

    def commit(self, names: "range | list[int] | list[str]") -> list[tuple[int, int]]:
        """The Scheduler fills granted pages under these names, as many at once as it has."""
        used: list[tuple[int, int]] = []
        for name in names:
            pair = self.granted.popleft()
            used.append(pair)
            self.say(
                CommitPages(keys=make_key(name), host_page_ids=int32_array(pair[:1]), generations=int32_array(pair[1:]))
            )
        return used

    def lookup(self, request: str, names: "range | list[int] | list[str]", num_l1_pages: int = 0) -> None:
        self.progress.pop(request, None)
        self.say(Lookup(request_id=RequestId(request), keys=make_keys(names), num_l1_pages=num_l1_pages))

    def sources(self, request: str) -> list[PageSource]:
        """The latest report."""
        return [PageSource(code) for code in self.progress[request][-1].sources]

    def is_final(self, request: str) -> bool:
        return self.progress[request][-1].is_final

    def lease(self, lease: int, names: "range | list[int] | list[str]") -> list[int]:
        """Host pages that a lease got."""
        self.say(LeasePages(lease_id=LeaseId(lease), keys=make_keys(names)))
        pages: list[int] = self.leased[lease].host_page_ids.tolist()
        return pages

    def release(self, *leases: int) -> None:
        self.say(ReleaseLeases(lease_ids=int32_array(leases)))

    def stat(self, name: str) -> int | str:
        return self.core.stats().get(name, 0)
