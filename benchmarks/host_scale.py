"""How long HostMemory's core takes over a full L2 of 1 TiB in pages of 1 MiB, on one CPU core.

    python -m benchmarks.host_scale

Nothing of the 1 TiB is touched: the core knows pages by number. It is filled, gets an empty backend
and a new Scheduler, and is flushed; its figures and single events are timed with nothing else to do
and with thousands of lookups and writes that wait. What is done in pieces counts by its longest
turn. All times are of this thread's CPU, and stand beside a reference loop of the same run.
"""

import gc
import random
import sys
from collections import deque
from collections.abc import Callable, Mapping
from time import thread_time

from benchmarks.model.model_shapes import small_model_layout
from benchmarks.records.command_line import add_results, count, make_parser, run
from benchmarks.records.record import Figure, report
from raydix.ids import ConnectionId, LeaseId, LookupId, SchedulerName
from raydix.runtime.cache.host.arena_geometry import ArenaGeometry, plan_arena
from raydix.runtime.cache.host.core import HostMemoryCore
from raydix.runtime.cache.host.events import (
    DetachStorage,
    FlushHost,
    FromScheduler,
    FromStorage,
    HostEvent,
    RetireStorage,
    SchedulerAttached,
    SchedulerLost,
    StorageAttached,
    StorageOrder,
    Tick,
    ToScheduler,
    ToStorage,
)
from raydix.runtime.cache.host.settings import HostSettings, StorageSettings
from raydix.runtime.cache.page_key import KEY_BYTES
from raydix.runtime.messages.host import (
    CancelBatch,
    CommitPages,
    CopiesDrained,
    DeleteObjects,
    LeasePages,
    Lookup,
    ObjectsDone,
    ObjectStatus,
    PagesGranted,
    ReleaseLeases,
    ToHost,
    WriteObjects,
)
from raydix.runtime.messages.retention import RetainObjects

SCHEDULER = SchedulerName("engine")
NUM_PAGES = 1 << 20
PAGE_SIZE = 64
NUM_LOOKUPS = 10_000
NUM_WAITING_WRITES = 200_000
CHAIN_PAGES = 64
REPEATS = 200
MAX_STATS_S = 0.001
MAX_TURN_S = 0.02
MAX_EVENT_S = 0.002


def geometry(num_pages: int) -> ArenaGeometry:
    """Pages of 1 MiB, header aside."""
    layout = small_model_layout(PAGE_SIZE)
    return plan_arena(layout, num_pages * layout.host_page_bytes(0))


class Node:
    """A core, what it has granted and ordered, and a clock that follows the calls."""

    def __init__(self, num_pages: int, storage: StorageSettings) -> None:
        settings = HostSettings(page_size=PAGE_SIZE, storage=storage)
        self.core = HostMemoryCore(geometry(num_pages), settings)
        self.connection = ConnectionId(0)
        self.storage: ConnectionId | None = None
        self.now_s = 0.0
        self.grants: deque[PagesGranted] = deque()
        self.orders: deque[StorageOrder] = deque()
        self.num_lookups = 0
        self._random = random.Random(0)

    def tell(self, event: HostEvent) -> float:
        """Take one turn; returns its seconds."""
        started_s = thread_time()
        effects = self.core.handle(event, self.now_s)
        self.core.next_deadline_s()
        seconds = thread_time() - started_s
        for effect in effects:
            if isinstance(effect, ToScheduler) and isinstance(effect.message, PagesGranted):
                self.grants.append(effect.message)
            elif isinstance(effect, ToStorage):
                self.orders.append(effect.message)
        return seconds

    def say(self, message: ToHost) -> float:
        """The Scheduler says something."""
        return self.tell(FromScheduler(self.connection, message))

    def attach_scheduler(self) -> list[float]:
        """A Scheduler connects and gets the whole mirror; the seconds of each turn."""
        self.connection = ConnectionId(self.connection + 1)
        self.grants.clear()
        return [self.tell(SchedulerAttached(self.connection, SCHEDULER)), *self.finish_pieces()]

    def attach_storage(self, pid: int) -> list[float]:
        """A storage actor connects."""
        self.storage = ConnectionId(1_000_000 + pid)
        self.orders.clear()
        return [self.tell(StorageAttached(self.storage, pid)), *self.finish_pieces()]

    def finish_pieces(self) -> list[float]:
        """Ticks, while they are due at once; the seconds of each."""
        turns = []
        while (due_s := self.core.next_deadline_s()) is not None and due_s <= self.now_s:
            turns.append(self.tell(Tick()))
        return turns

    def answer(self, status: ObjectStatus) -> float:
        """Storage answers its oldest order, and takes what is written in any case."""
        order = self.orders.popleft()
        if isinstance(order, CancelBatch | RetainObjects):
            return 0.0
        if isinstance(order, WriteObjects):
            status = ObjectStatus.OK
        num_objects = 1 if isinstance(order, DeleteObjects) else len(order.keys) // KEY_BYTES
        assert self.storage is not None
        self.now_s += 1e-5
        done = ObjectsDone(batch_id=order.batch_id, statuses=bytes([status]) * num_objects)
        return self.tell(FromStorage(self.storage, done))

    def new_keys(self, num_pages: int) -> bytes:
        """Keys that nobody has had."""
        return self._random.randbytes(KEY_BYTES * num_pages)

    def commit(self) -> tuple[float, int]:
        """The Scheduler fills what it was granted; seconds and pages."""
        grant = self.grants.popleft()
        keys = self.new_keys(len(grant.host_page_ids))
        commit = CommitPages(
            keys=keys, host_page_ids=grant.host_page_ids, generations=grant.generations
        )
        return self.say(commit), len(grant.host_page_ids)

    def look_up(self) -> float:
        """A lookup of a new chain."""
        self.num_lookups += 1
        keys = self.new_keys(CHAIN_PAGES)
        return self.say(Lookup(lookup_id=LookupId(self.num_lookups), keys=keys, num_l1_pages=(0,)))


def usual(act: Callable[[], float]) -> float:
    """The median of many turns of one kind."""
    return sorted(act() for _ in range(REPEATS))[REPEATS // 2]


def reference_loop() -> float:
    """Seconds that this core takes now for a million additions to a dictionary."""
    started_s = thread_time()
    numbers: dict[int, int] = {}
    for number in range(1_000_000):
        numbers[number] = number
    return thread_time() - started_s


def lease_and_release(node: Node) -> float:
    """A lease of nothing and its end: what every event costs."""
    seconds = node.say(LeasePages(lease_id=LeaseId(1), keys=node.new_keys(1), starts=(0,)))
    return seconds + node.say(ReleaseLeases(lease_ids=(LeaseId(1),)))


def fill(node: Node, num_pages: int) -> tuple[float, float]:
    """Commit until L2 is full; seconds per page, and of the longest turn."""
    turns, num_committed = [], 0
    while num_committed < num_pages:
        spent_s, num_new = node.commit()
        turns.append(spent_s)
        num_committed += num_new
    return sum(turns) / num_committed, max(turns)


def measure(num_pages: int = NUM_PAGES) -> Mapping[str, float]:
    """Seconds, by what was done; `_turn`: the longest turn of it."""
    gc.collect()
    measured = {"reference_loop": reference_loop()}
    storage = StorageSettings(patience_s=3600.0, exists_deadline_s=3600.0)
    node = Node(num_pages, storage)
    node.attach_scheduler()
    measured["empty_event"] = usual(lambda: lease_and_release(node))
    measured["commit_per_page"], measured["commit_turn"] = fill(node, num_pages)
    measured["stats"] = usual(lambda: _time(node.core.stats))

    measured["attach_turn"] = max(node.attach_storage(1))
    # Storage has what it is asked for, so that the walk goes on without writes.
    measured["repairs_turn"] = max(node.answer(ObjectStatus.OK) for _ in range(REPEATS))
    _commit_writes(node, num_pages)

    # Another backend is empty, so that all of L2 is written to it.
    measured["detach_turn"] = max(node.tell(RetireStorage()), node.tell(DetachStorage()))
    measured["attach_empty_turn"] = max(node.attach_storage(2))
    measured["lacking_turn"] = max(node.answer(ObjectStatus.MISSING) for _ in range(REPEATS))

    _commit_writes(node, num_pages)
    for _ in range(NUM_LOOKUPS):
        node.look_up()
    measured["loaded_event"] = usual(lambda: lease_and_release(node))
    measured["loaded_stats"] = usual(lambda: _time(node.core.stats))
    measured["loaded_lookup"] = usual(node.look_up)
    measured["answer_turn"] = max(node.answer(ObjectStatus.OK) for _ in range(REPEATS))

    measured["scheduler_lost_turn"] = node.tell(SchedulerLost(node.connection))
    measured["mirror_turn"] = max(node.attach_scheduler())
    node.say(CopiesDrained())
    measured["flush_turn"] = max(node.tell(FlushHost()), *node.finish_pieces())
    num_being_written = storage.max_write_batches * storage.batch_pages
    num_left = node.core.stats()["pages_ready"]
    assert int(num_left) <= num_being_written, "a flush leaves what is read"
    return measured


def _commit_writes(node: Node, num_pages: int) -> None:
    """Let many pages wait to be written to storage, which answers nothing."""
    while node.core.stats()["l3_writes_pending"] < min(NUM_WAITING_WRITES, num_pages // 2):
        node.commit()


def _time(act: Callable[[], object]) -> float:
    started_s = thread_time()
    act()
    return thread_time() - started_s


def figures(measured: Mapping[str, float]) -> list[Figure]:
    """What was measured, with bars and, beside each value, the reference loop's time."""
    bars = {
        "stats": MAX_STATS_S,
        "loaded_stats": MAX_STATS_S,
        "attach_turn": MAX_TURN_S,
        "repairs_turn": MAX_TURN_S,
        "answer_turn": MAX_TURN_S,
        "detach_turn": MAX_TURN_S,
        "attach_empty_turn": MAX_TURN_S,
        "lacking_turn": MAX_TURN_S,
        "commit_turn": MAX_TURN_S,
        "scheduler_lost_turn": MAX_TURN_S,
        "mirror_turn": MAX_TURN_S,
        "flush_turn": MAX_TURN_S,
        "loaded_event": MAX_EVENT_S,
        "loaded_lookup": MAX_EVENT_S,
    }

    reference_s = measured["reference_loop"]
    return [
        Figure(
            name=name,
            value=1e3 * seconds,
            unit="ms",
            max_value=1e3 * bars[name] if name in bars else None,
            baseline=1e3 * reference_s,
            baseline_name="a million additions to a dictionary",
        )
        for name, seconds in measured.items()
    ]


def main() -> int:
    """Returns 1 if a bar is not met."""
    parser = make_parser(__doc__)
    parser.add_argument("--pages", type=count, default=NUM_PAGES)
    add_results(parser, help="folder for the record", default=None)

    arguments = parser.parse_args()
    measured = measure(arguments.pages)
    for name, seconds in measured.items():
        ratio = seconds / measured["reference_loop"]
        print(f"{name}: {1e3 * seconds:.3f} ms, {ratio:.4f} of the reference loop", file=sys.stderr)
    config = {
        "pages": arguments.pages,
        "lookups": NUM_LOOKUPS,
        "waiting_writes": NUM_WAITING_WRITES,
    }
    return report("host_scale", config, figures(measured), keep_in=arguments.results)


if __name__ == "__main__":
    run(main)
