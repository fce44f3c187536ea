"""A Scheduler's core beside which nothing runs: events in, CPU seconds out."""

import time
from collections import deque
from collections.abc import Callable

import numpy as np

from benchmarks.cores.scheduler_engine import CLIENT, LINK, transfer_ids
from benchmarks.model.model_shapes import small_model_layout
from raydix.ids import AskingId, RequestId
from raydix.runtime.cache.page_key import KEY_BYTES, MIRROR_KEY_BYTES
from raydix.runtime.config.policies import PrefetchStrategy
from raydix.runtime.messages import host
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import SubmitRequest
from raydix.runtime.messages.host import PageSource
from raydix.runtime.messages.mirror import MirrorUpdate
from raydix.runtime.messages.plan import DeviceSampling, StepPlan, StepResult, TransfersDone
from raydix.runtime.scheduler import events
from raydix.runtime.scheduler.core import SchedulerCore
from raydix.runtime.scheduler.settings import PrefetchSettings, SchedulerSettings

VOCAB_SIZE = 30_000
MAX_REQUESTS = 1_000_000


def settings_of(page_size: int, num_pages: int) -> SchedulerSettings:
    """One lane; the parts change what they are about."""
    return SchedulerSettings(
        layout=small_model_layout(page_size),
        num_lanes=1,
        num_pages=(num_pages,),
        max_model_len=131_072,
        max_waiting_requests=MAX_REQUESTS,
        start_prefill_tokens_per_s=20_000.0,
        lookup_deadline_s=1e9,
        prefetch=PrefetchSettings(strategy=PrefetchStrategy.WAIT_COMPLETE),
    )


class Bench:
    """A Scheduler's core, what it has sent, and the CPU time of each event."""

    def __init__(self, settings: SchedulerSettings, *, has_storage: bool) -> None:
        self.settings = settings
        self.core = SchedulerCore(settings)
        self.now_s = 0.0
        self.plans: deque[StepPlan] = deque()
        self.to_host: deque[host.ToHost] = deque()
        self.num_ended = 0
        self._num_submitted = 0
        self._num_host_pages = 0
        self._random = np.random.default_rng(0)
        self.send(events.RankAttached(rank=0, connection=LINK, incarnation=1, pid=1))
        if settings.has_host_memory:
            self.send(events.HostAttached(connection=LINK))
            self.hear(host.StorageStatus(is_in_use=has_storage, max_staged_pages=(MAX_REQUESTS,)))

    def send(self, event: events.Event) -> float:
        """Give the core an event; returns the CPU seconds that it took."""
        began_s = time.thread_time()
        effects = self.core.handle(event, self.now_s)
        took_s = time.thread_time() - began_s

        for effect in effects:
            match effect:
                case events.SendPlan():
                    self.plans.append(effect.plan)
                case events.SendHost():
                    self.to_host.append(effect.message)
                case events.SendClient():
                    self.num_ended += (
                        effect.delta.finished is not None or effect.delta.failure is not None
                    )
                case _:
                    pass
        return took_s

    def hear(self, message: host.FromHost) -> float:
        """HostMemory says something."""
        return self.send(events.HostMessage(connection=LINK, message=message))

    def submit(
        self,
        num_tokens: int,
        *,
        max_tokens: int = 64,
        num_keys: int = 1,
        deadline_s: float | None = None,
    ) -> float:
        """A request with a prompt of its own and one of `num_keys` routing keys arrives."""
        self._num_submitted += 1
        self.now_s += 1e-5
        message = SubmitRequest(
            asking=AskingId(self._num_submitted),
            request_id=RequestId(f"r{self._num_submitted}"),
            token_ids=int32_array(self._random.integers(0, VOCAB_SIZE, num_tokens)),
            sampling=DeviceSampling(seed=0),
            max_tokens=max_tokens,
            routing_key=f"k{self._num_submitted % num_keys}",
            deadline_s=deadline_s,
        )

        took_s = self.send(events.ClientMessage(client_id=CLIENT, message=message))
        while self.core._requests.unplaced:
            took_s += self.send(events.Tick())
        return took_s

    def grant(self, num_pages: int) -> None:
        """HostMemory hands out free pages."""
        pages = int32_array(range(self._num_host_pages, self._num_host_pages + num_pages))
        self._num_host_pages += num_pages
        self.hear(host.PagesGranted(host_page_ids=pages, generations=pages))

    def tick(self) -> float:
        """Let the core do what is due."""
        took_s = 0.0
        while (due_s := self.core.next_deadline_s()) is not None and due_s <= self.now_s:
            took_s += self.send(events.Tick())
        return took_s

    def step(self) -> float:
        """Carry the oldest plan out with all its copies; returns the CPU seconds of the reports."""
        plan = self.plans.popleft()
        self.now_s += 0.01
        num_sampled = int((plan.row_output_positions >= 0).sum())
        result = StepResult(
            rank=0, step=plan.step, token_ids=int32_array([5] * num_sampled), compute_s=0.01
        )
        took_s = self.send(events.RankMessage(rank=0, connection=LINK, message=result))

        copies = transfer_ids(plan)
        if copies:
            done = TransfersDone(rank=0, transfer_ids=int32_array(copies))
            took_s += self.send(events.RankMessage(rank=0, connection=LINK, message=done))
        return took_s

    def answer_host(self, sources_of: Callable[[host.Lookup], bytes]) -> None:
        """HostMemory answers each lookup with `sources_of` it, and has what is committed."""
        while self.to_host:
            message = self.to_host.popleft()
            match message:
                case host.Lookup():
                    sources = sources_of(message)
                    is_final = PageSource.PENDING not in sources

                    self.hear(
                        host.LookupProgress(
                            lookup_id=message.lookup_id, sources=(sources,), is_final=is_final
                        )
                    )
                case host.CommitPages():
                    self.hear(MirrorUpdate(ready=halves(message.keys)))
                    self.grant(len(message.host_page_ids))
                case _:
                    pass


def halves(keys: bytes) -> bytes:
    """Page keys as the mirror of L2 has them."""
    return b"".join(
        keys[start : start + MIRROR_KEY_BYTES] for start in range(0, len(keys), KEY_BYTES)
    )


def not_found(lookup: host.Lookup) -> bytes:
    """No tier has what L1 lacks."""
    num_pages = len(lookup.keys) // KEY_BYTES
    (num_l1_pages,) = lookup.num_l1_pages
    return bytes([PageSource.L1]) * num_l1_pages + bytes([PageSource.NOT_FOUND]) * (
        num_pages - num_l1_pages
    )


def pending(lookup: host.Lookup) -> bytes:
    """Nothing is known yet."""
    return bytes([PageSource.PENDING]) * (len(lookup.keys) // KEY_BYTES)
