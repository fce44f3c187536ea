"""A GPU actor with a made-up model, and the Scheduler's end of its link, which the test plays."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from raydix.errors import AccountingError
from raydix.ids import RequestId, Slot
from raydix.runtime.actors.gpu import GpuActor
from raydix.runtime.actors.gpu_model import GpuModel, LoadedGpuModel, RankPlace
from raydix.runtime.actors.links.link import BlockingLink, Link, LinkClosed
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.hello import Hello, Role
from raydix.runtime.messages.plan import (
    AddedRequest,
    DeviceSampling,
    PageCopies,
    StepPlan,
)
from raydix.runtime.testing.links import (
    InProcessBlockingLink,
    InProcessLink,
    in_process_blocking_pair,
)
from raydix.runtime.testing.sleeping_runner import (
    SleepingOutput,
    SleepingRunner,
    build_sleeping_model,
)
from raydix.runtime.tiers.cpu_transfers import CpuTransfers
from raydix.runtime.tiers.gpu_pool import make_pools
from raydix.runtime.tiers.host_arena import HostArena
from raydix.runtime.tiers.transfers import (
    Delay,
    OnDone,
    OnError,
    TransferEngine,
    WaitLayer,
    no_delay,
)

SECRET = b"secret"
SCHEDULER = Hello(role=Role.SCHEDULER, name="scheduler", incarnation=1, pid=1)
GPU = Hello(role=Role.GPU, name="gpu0", incarnation=1, pid=1)
CONFIG = EngineConfig.model_validate(
    {"model": {"path": "/nowhere"}, "cache": {"l1": {"num_pages": 8}}}
)
WAIT_S = 20


@dataclass
class Calls:
    """What a runner was told, in order."""

    applied: list[StepPlan] = field(default_factory=list)
    executed: list[int] = field(default_factory=list)


class RecordingRunner:
    """Makes up tokens like `SleepingRunner`, and waits for what its rows' loads bring."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._tokens = SleepingRunner(0.0)

    def apply(self, plan: StepPlan) -> None:
        self._calls.applied.append(plan)

    def execute(self, plan: StepPlan, wait_layer: WaitLayer) -> SleepingOutput:
        if plan.step == 666:
            raise AccountingError("impossible plan")
        for transfer_id in set(plan.row_loads[plan.row_loads >= 0].tolist()):
            wait_layer(transfer_id, 0)
        self._calls.executed.append(plan.step)
        return self._tokens.execute(plan, wait_layer)


class Rank:
    """A GPU actor, and the Scheduler's end of its link."""

    def __init__(self, config: EngineConfig = CONFIG, delay: Delay = no_delay) -> None:
        self.delay = delay
        self.calls = Calls()
        self.died = threading.Event()
        self.entered: list[str] = []
        """Names of the threads that entered the model."""
        self.pools: tuple[torch.Tensor, ...] = ()
        self.is_beside_steps = False
        """Whether what is enqueued now waits for no step."""
        self.links: asyncio.Queue[InProcessLink] = asyncio.Queue()
        self._blocking: list[InProcessBlockingLink] = []
        self._dialled = threading.Semaphore(0)

        self.actor = GpuActor(
            config=config,
            name="test",
            rank=0,
            incarnation=1,
            build_model=self._build,
            on_fatal=self.died.set,
        )

    def _build(self, config: EngineConfig, place: RankPlace) -> LoadedGpuModel:
        loaded = build_sleeping_model(config, place, step_s=0.0)
        return replace(loaded, prepare=partial(self._prepare, loaded))

    def _prepare(self, loaded: LoadedGpuModel, num_pages: tuple[int, ...]) -> GpuModel:
        shard = KvShard(layout=loaded.report.layout)
        self.pools = make_pools(shard, num_pages, torch.device("cpu"))

        def make_transfers(arena: HostArena, on_done: OnDone, on_error: OnError) -> TransferEngine:
            return CpuTransfers(
                shard,
                self.pools,
                arena,
                on_done=on_done,
                on_error=on_error,
                copy_delay_s=0.01,
                delay=self.delay,
            )

        return replace(
            loaded.prepare(num_pages),
            runner=RecordingRunner(self.calls),
            make_transfers=make_transfers,
            enter_thread=lambda: self.entered.append(threading.current_thread().name),
            beside_steps=self._beside_steps,
        )

    @contextmanager
    def _beside_steps(self) -> Iterator[None]:
        self.is_beside_steps = True
        yield
        self.is_beside_steps = False

    def new_scheduler(self) -> InProcessLink:
        """A Scheduler that the actor finds when it next looks for one."""
        link, blocking = in_process_blocking_pair(SCHEDULER, GPU)
        self._blocking.append(blocking)
        self._dialled.release()
        return link

    def dial(self, stop: threading.Event) -> BlockingLink:
        if not self._dialled.acquire(timeout=0.01):
            raise LinkClosed("no Scheduler yet")
        return self._blocking.pop(0)


async def receive(link: Link, kind: type) -> Any:
    message = await asyncio.wait_for(link.receive(), WAIT_S)
    assert type(message) is kind
    return message


def rows(step: int, slots: list[int], **more: Any) -> StepPlan:
    count = len(slots)
    columns = {
        "row_slots": int32_array(slots),
        "row_starts": int32_array([10 * slot for slot in slots]),
        "row_num_tokens": int32_array([1] * count),
        "row_write_starts": int32_array([10 * slot for slot in slots]),
        "row_output_positions": int32_array([0] * count),
        "row_loads": int32_array([-1] * count),
    }
    return StepPlan(step=step, **{**columns, **more})


def added(slot: int) -> AddedRequest:
    return AddedRequest(
        slot=Slot(slot),
        request_id=RequestId(f"r{slot}"),
        token_ids=int32_array([1, 2]),
        num_prompt_tokens=2,
        sampling=DeviceSampling(seed=0),
    )


def copies(arena: HostArena, transfer_id: int, pairs: list[tuple[int, int]]) -> PageCopies:
    return PageCopies(
        transfer_ids=int32_array([transfer_id] * len(pairs)),
        groups=int32_array([0] * len(pairs)),
        page_ids=int32_array(page for page, _ in pairs),
        host_page_ids=int32_array(host for _, host in pairs),
        generations=int32_array(arena.generations[[host for _, host in pairs]]),
    )


async def attach(rank: Rank) -> HostArena:
    facts = await rank.actor.load()
    arena = HostArena.create(facts.layout, 1 << 16, num_threads=1)
    await rank.actor.attach_arena(arena.location)
    return arena
