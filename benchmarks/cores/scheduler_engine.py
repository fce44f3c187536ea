"""Both cores on a virtual clock, with a model and storage that only take their time."""

import heapq
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import numpy as np

from raydix.ids import AskingId, ClientId, ConnectionId, RequestId, SchedulerName
from raydix.runtime.cache.host import events as host_events
from raydix.runtime.cache.host.arena_geometry import plan_arena
from raydix.runtime.cache.host.core import HostMemoryCore
from raydix.runtime.cache.host.settings import HostSettings
from raydix.runtime.cache.host.window_ends import make_rule
from raydix.runtime.cache.page_key import KEY_BYTES
from raydix.runtime.messages.arrays import Int32Array, int32_array
from raydix.runtime.messages.client import RequestDelta, SubmitRequest
from raydix.runtime.messages.host import (
    CancelBatch,
    DeleteObjects,
    ObjectsDone,
    ReadObjects,
)
from raydix.runtime.messages.plan import DeviceSampling, StepPlan, StepResult, TransfersDone
from raydix.runtime.messages.retention import RetainObjects
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.core import SchedulerCore
from raydix.runtime.scheduler.settings import SchedulerSettings

CLIENT = ClientId("benchmark")
LINK = ConnectionId(1)
STORAGE_PID = 9
LINK_S = 1e-4
STEP_S = 0.02
EXISTS_S = 1e-4
COPY_BYTES_PER_S = 50e9
ARRIVAL_S = 1e-4
"""The time between two requests."""
OUTPUT_TOKEN = 5


def transfer_ids(plan: StepPlan) -> list[int]:
    """The loads and backups of a plan, each once."""
    ids = [*plan.loads.transfer_ids.tolist(), *plan.backups.transfer_ids.tolist()]
    return list(dict.fromkeys(ids))


Carry = Callable[[StepPlan, float], Iterable[tuple[float, StepResult | TransfersDone]]]
"""What a rank reports of a plan that has come at this time, each with its time."""
OnOutput = Callable[[AskingId, int, bool], None]
"""A client has got so many tokens of an asking, which may have ended."""


def sampled_tokens(plan: StepPlan) -> Int32Array:
    """What the rows of a plan sample."""
    return int32_array([OUTPUT_TOKEN] * int((plan.row_output_positions >= 0).sum()))


class PlainDevice:
    """Owns: when a rank is free. All steps take equally long, and copies run beside each other."""

    def __init__(self, page_bytes: Sequence[int]) -> None:
        self._page_bytes = page_bytes
        self._free_s = 0.0

    def carry_out(
        self, plan: StepPlan, now_s: float
    ) -> Iterator[tuple[float, StepResult | TransfersDone]]:
        """Carry a plan out in a fixed time. It is a `Carry`."""
        self._free_s = max(now_s, self._free_s) + (STEP_S if len(plan.row_slots) else 0.0)
        tokens = sampled_tokens(plan)
        yield (
            self._free_s,
            StepResult(rank=0, step=plan.step, token_ids=tokens, compute_s=STEP_S),
        )

        copies = transfer_ids(plan)
        if copies:
            num_bytes = sum(self._page_bytes[group] for group in plan.loads.groups.tolist())
            seconds = max(1e-3, num_bytes / COPY_BYTES_PER_S)
            done = TransfersDone(
                rank=0, transfer_ids=int32_array(copies), num_bytes=num_bytes, seconds=seconds
            )
            yield now_s + seconds, done


class Engine:
    """A Scheduler, its HostMemory, one rank, and storage that has every page, or no storage."""

    def __init__(
        self,
        settings: SchedulerSettings,
        *,
        l2_pages: int,
        storage_bytes_per_s: float | None = None,
        carry_out: Carry | None = None,
        on_output: OnOutput = lambda asking, num_tokens, has_ended: None,
    ) -> None:
        """`l2_pages`: room in L2, in pages of all KV groups together; 0 without L2.

        `storage_bytes_per_s`: None without storage. `carry_out`: None for a `PlainDevice`.
        """
        layout, groups = settings.layout, range(settings.num_groups)
        self._page_bytes = [layout.payload_bytes(group) for group in groups]
        self._storage_bytes_per_s = storage_bytes_per_s or 0.0
        self._carry = carry_out or PlainDevice(self._page_bytes).carry_out
        self._on_output = on_output
        self._core = SchedulerCore(settings)
        arena_bytes = max(1, l2_pages) * sum(layout.host_page_bytes(group) for group in groups)
        has_storage = storage_bytes_per_s is not None
        self._host = HostMemoryCore(
            plan_arena(layout, arena_bytes),
            HostSettings(
                page_size=settings.page_size, rule=make_rule(layout), has_storage=has_storage
            ),
        )

        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = itertools.count()
        self._storage_free_s = 0.0
        self._host_due_s = float("-inf")
        self._core_due_s = float("-inf")
        self._num_open = 0
        self._num_submitted = 0
        self.now_s = 0.0
        self.scheduler_s = 0.0
        """CPU seconds of the Scheduler's core."""
        self.sources: Counter[str] = Counter()
        self.loaded_pages: Counter[int] = Counter()
        """Pages that plans have loaded, by KV group."""

        self._to_core(events.RankAttached(rank=0, connection=LINK, incarnation=1, pid=1))
        if settings.has_host_memory:
            self._to_core(events.HostAttached(connection=LINK))
            self._to_host(host_events.SchedulerAttached(LINK, SchedulerName("engine")))
        if has_storage:
            self._to_host(host_events.StorageAttached(LINK, STORAGE_PID))

    def submit_all(self, num_requests: int, num_tokens: int, *, max_tokens: int) -> None:
        """Requests with prompts of their own arrive one soon after the other."""
        draw = np.random.default_rng(0)
        for index in range(num_requests):
            tokens = draw.integers(0, 30_000, num_tokens)
            self.submit(tokens, max_tokens=max_tokens, after_s=(index + 1) * ARRIVAL_S)

    def submit(
        self, token_ids: Iterable[int], *, max_tokens: int, after_s: float = ARRIVAL_S
    ) -> AskingId:
        """One request arrives; every token of its answer is OUTPUT_TOKEN."""
        message = SubmitRequest(
            asking=AskingId(self._num_submitted),
            request_id=RequestId(f"r{self._num_submitted}"),
            token_ids=int32_array(token_ids),
            sampling=DeviceSampling(seed=0),
            max_tokens=max_tokens,
        )
        self._num_submitted += 1
        self._num_open += 1
        event = events.ClientMessage(client_id=CLIENT, message=message)
        self._after(after_s, partial(self._to_core, event))
        return message.asking

    def run(self) -> None:
        """Go on until every request has ended."""
        while self._num_open:
            self._go_on()

    def settle(self, seconds: float = 1.0) -> None:
        """Let so much time pass, in which backups end."""
        end_s = self.now_s + seconds
        while self._queue and self._queue[0][0] <= end_s:
            self._go_on()
        self.now_s = end_s

    def flush_l1(self) -> None:
        """Drop what L1 holds."""
        self._to_core(events.FlushL1())

    def num_cached_pages(self, group: int) -> int:
        """Pages of a KV group that L1 and L2 hold, those of both counted twice."""
        in_l1 = self._core.stats()[f"l1_cached_pages_{group}"]
        return int(in_l1) + int(self.host_stats()[f"pages_ready_{group}"])

    def host_stats(self) -> dict[str, int | str]:
        """Figures of L2."""
        return self._host.stats()

    def _go_on(self) -> None:
        time_s, _, action = heapq.heappop(self._queue)
        self.now_s = max(self.now_s, time_s)
        action()

    def _after(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now_s + delay_s, next(self._serial), action))

    def _to_core(self, event: events.Event) -> None:
        began_s = time.thread_time()
        effects = self._core.handle(event, self.now_s)
        self.scheduler_s += time.thread_time() - began_s

        for effect in effects:
            match effect:
                case events.SendHost():
                    said = host_events.FromScheduler(LINK, effect.message)
                    self._after(LINK_S, partial(self._to_host, said))
                case events.SendPlan():
                    self._carry_out(effect.plan)
                case events.SendClient():
                    self._hear(effect.delta)
                case events.SendTokens():
                    for asking in effect.askings.tolist():
                        self._on_output(AskingId(asking), 1, False)
                case _:
                    pass

        due_s = self._core.next_deadline_s()
        if due_s is not None and due_s != self._core_due_s:
            self._core_due_s = due_s
            self._after(max(0.0, due_s - self.now_s), self._tick_core)

    def _tick_core(self) -> None:
        # The next tick may be due at the same time: long prompts are hashed in parts.
        self._core_due_s = float("-inf")
        due_s = self._core.next_deadline_s()
        if due_s is not None and due_s <= self.now_s:
            self._to_core(events.Tick())

    def _hear(self, delta: RequestDelta) -> None:
        self.sources.update(delta.cached_tokens_by_source or {})
        has_ended = delta.finished is not None or delta.failure is not None
        self._num_open -= has_ended
        self._on_output(delta.asking, len(delta.token_ids), has_ended)

    def _carry_out(self, plan: StepPlan) -> None:
        self.loaded_pages.update(Counter(plan.loads.groups.tolist()))
        for time_s, message in self._carry(plan, self.now_s):
            self._after(time_s - self.now_s, partial(self._report, message))

    def _report(self, message: StepResult | TransfersDone) -> None:
        self._to_core(events.RankMessage(rank=0, connection=LINK, message=message))

    def _to_host(self, event: host_events.HostEvent) -> None:
        for effect in self._host.handle(event, self.now_s):
            match effect:
                case host_events.ToScheduler():
                    said = events.HostMessage(connection=LINK, message=effect.message)
                    self._after(LINK_S, partial(self._to_core, said))
                case host_events.ToStorage():
                    self._order(effect.message)
                case _:
                    pass

        due_s = self._host.next_deadline_s()
        if due_s is not None and due_s != self._host_due_s:
            self._host_due_s = due_s
            self._after(max(0.0, due_s - self.now_s), self._tick_host)

    def _tick_host(self) -> None:
        self._host_due_s = float("-inf")
        due_s = self._host.next_deadline_s()
        if due_s is not None and due_s <= self.now_s:
            self._to_host(host_events.Tick())

    def _order(self, order: host_events.StorageOrder) -> None:
        if isinstance(order, CancelBatch | DeleteObjects | RetainObjects):
            return
        num_objects = len(order.keys) // KEY_BYTES
        is_read = isinstance(order, ReadObjects)
        num_bytes = num_objects * self._page_bytes[order.group]
        takes_s = num_bytes / self._storage_bytes_per_s if is_read else EXISTS_S

        # Storage carries out one order at a time.
        self._storage_free_s = max(self.now_s, self._storage_free_s) + takes_s
        done = ObjectsDone(batch_id=order.batch_id, statuses=bytes(num_objects))
        answer = host_events.FromStorage(LINK, done)
        self._after(self._storage_free_s - self.now_s, lambda: self._to_host(answer))
