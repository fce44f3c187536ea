import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from raydix.errors import AccountingError
from raydix.ids import HostPageId, RequestId, Slot
from raydix.runtime.actors.gpu import GpuActor, GpuSetup
from raydix.runtime.actors.gpu_model import GpuModel
from raydix.runtime.actors.links.link import BlockingLink, Link, LinkClosed
from raydix.runtime.actors.links.socket_link import Listener, listen
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.hello import Hello, Role
from raydix.runtime.messages.host import ProcessDrained
from raydix.runtime.messages.plan import (
    AddedRequest,
    DeviceSampling,
    PageCopies,
    StepPlan,
    StepResult,
    TransfersDone,
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
from raydix.runtime.tiers.gpu_pool import as_bytes, make_pools
from raydix.runtime.tiers.host_arena import HostArena
from raydix.runtime.tiers.transfers import OnDone, OnError, TransferEngine, WaitLayer

SECRET = b"secret"
SCHEDULER = Hello(secret=SECRET, role=Role.SCHEDULER, name="scheduler", incarnation=1, pid=1)
GPU = Hello(secret=SECRET, role=Role.GPU, name="gpu0", incarnation=1, pid=1)
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
    """Makes up tokens like `SleepingRunner`, and waits for the layers that its rows' loads bring."""

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

    def __init__(self) -> None:
        self.calls = Calls()
        self.died = threading.Event()
        self.pools: tuple[torch.Tensor, ...] = ()
        self.links: asyncio.Queue[InProcessLink] = asyncio.Queue()
        self._blocking: list[InProcessBlockingLink] = []
        self._dialled = threading.Semaphore(0)
        self.actor = GpuActor(
            config=CONFIG,
            name="test",
            rank=0,
            incarnation=1,
            build_model=self._build,
            on_fatal=self.died.set,
        )

    def _build(self, config: EngineConfig, device_index: int) -> GpuModel:
        model = build_sleeping_model(config, device_index, step_s=0.0)
        shard = KvShard(layout=model.report.layout)
        self.pools = make_pools(shard, [model.report.num_pages], torch.device("cpu"))

        def make_transfers(arena: HostArena, on_done: OnDone, on_error: OnError) -> TransferEngine:
            return CpuTransfers(
                shard, self.pools, arena, on_done=on_done, on_error=on_error, copy_delay_s=0.01
            )

        return replace(model, runner=RecordingRunner(self.calls), make_transfers=make_transfers)

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


@pytest.fixture
async def rank() -> AsyncIterator[Rank]:
    made = Rank()
    await made.actor.load()
    yield made
    await made.actor.shutdown()


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


async def test_every_plan_is_acknowledged_in_order_with_the_tokens_of_its_sampling_rows(
    rank: Rank,
) -> None:
    link = rank.new_scheduler()
    rank.actor.serve(rank.dial)

    link.send(rows(1, [0, 3, 5], row_output_positions=int32_array([0, -1, 2])))
    link.send(StepPlan(step=2))
    link.send(rows(3, [0]))
    results = [await receive(link, StepResult) for _ in range(3)]

    assert [result.step for result in results] == [1, 2, 3]
    assert [len(result.token_ids) for result in results] == [2, 0, 1]
    assert results[0].token_ids[0] == results[2].token_ids[0]
    assert rank.calls.executed == [1, 3]


async def test_copies_are_reported_though_no_step_runs(rank: Rank) -> None:
    arena = await attach(rank)
    link = rank.new_scheduler()
    rank.actor.serve(rank.dial)
    payload = arena.payload(HostPageId(3), 0)
    payload[:] = bytes(range(256)) * (len(payload) // 256)

    link.send(StepPlan(step=1, loads=copies(arena, 7, [(2, 3)])))
    messages = [await asyncio.wait_for(link.receive(), WAIT_S) for _ in range(2)]

    (done,) = [message for message in messages if isinstance(message, TransfersDone)]
    assert done.transfer_ids.tolist() == [7]
    assert done.num_bytes == len(payload)
    assert done.seconds > 0
    assert as_bytes(rank.pools[0])[2].numpy().tobytes() == bytes(payload)


async def test_a_row_waits_for_its_load_before_it_runs(rank: Rank) -> None:
    arena = await attach(rank)
    link = rank.new_scheduler()
    rank.actor.serve(rank.dial)

    link.send(
        rows(
            1,
            [0],
            loads=copies(arena, 7, [(page, page) for page in range(1, 5)]),
            row_loads=int32_array([7]),
        )
    )
    messages = [await asyncio.wait_for(link.receive(), WAIT_S) for _ in range(2)]

    (done,) = [message for message in messages if isinstance(message, TransfersDone)]
    (result,) = [message for message in messages if isinstance(message, StepResult)]
    assert done.transfer_ids.tolist() == [7]
    assert result.compute_s < done.seconds


async def test_stale_loads_are_reported_as_such(rank: Rank) -> None:
    arena = await attach(rank)
    link = rank.new_scheduler()
    rank.actor.serve(rank.dial)
    plan = StepPlan(step=1, loads=copies(arena, 7, [(2, 3)]))
    arena.generations[3] += 1

    link.send(plan)
    messages = [await asyncio.wait_for(link.receive(), WAIT_S) for _ in range(2)]

    (done,) = [message for message in messages if isinstance(message, TransfersDone)]
    assert done.stale_transfer_ids.tolist() == [7]


async def test_after_the_scheduler_is_gone_requests_are_forgotten_and_the_next_one_starts_afresh(
    rank: Rank,
) -> None:
    arena = await attach(rank)
    first = rank.new_scheduler()
    rank.actor.serve(rank.dial)
    first.send(
        rows(
            41,
            [0, 1],
            added=(added(0), added(1), added(4)),
            backups=copies(arena, 1, [(1, 1), (2, 2)]),
        )
    )
    first.send(StepPlan(step=42, removed_slots=int32_array([1])))
    await receive(first, StepResult)
    while (await asyncio.wait_for(first.receive(), WAIT_S)) is not None and len(
        rank.calls.applied
    ) < 2:
        continue
    first.close()

    second = rank.new_scheduler()
    second.send(rows(1, [0], added=(added(0),)))
    result = await receive(second, StepResult)

    assert result.step == 1
    assert [plan.removed_slots.tolist() for plan in rank.calls.applied] == [[], [1], [0, 4], []]
    assert (await rank.actor.stats())["num_links"] == 2


async def test_draining_waits_for_copies_to_end_and_be_reported(rank: Rank) -> None:
    arena = await attach(rank)
    link = rank.new_scheduler()
    rank.actor.serve(rank.dial)
    link.send(StepPlan(step=1, backups=copies(arena, 1, [(page, page) for page in range(1, 7)])))
    await receive(link, StepResult)

    await rank.actor.drain()

    assert (await receive(link, TransfersDone)).transfer_ids.tolist() == [1]


@pytest.mark.parametrize("make_bad", [lambda: rows(666, [0]), lambda: ProcessDrained(pid=1)])
async def test_what_cannot_be_carried_out_ends_the_actor(
    rank: Rank, make_bad: Callable[[], Any]
) -> None:
    link = rank.new_scheduler()
    rank.actor.serve(rank.dial)

    link.send(make_bad())

    with pytest.raises(LinkClosed):
        await asyncio.wait_for(link.receive(), WAIT_S)
    assert await asyncio.to_thread(rank.died.wait, WAIT_S)


async def test_a_gap_in_the_plans_ends_the_actor(rank: Rank) -> None:
    link = rank.new_scheduler()
    rank.actor.serve(rank.dial)

    link.send(StepPlan(step=1))
    link.send(StepPlan(step=3))

    assert await asyncio.to_thread(rank.died.wait, WAIT_S)


async def test_copies_without_an_arena_end_the_actor(rank: Rank) -> None:
    link = rank.new_scheduler()
    rank.actor.serve(rank.dial)
    arena = HostArena.create((await rank.actor.load()).layout, 1 << 16, num_threads=1)

    link.send(StepPlan(step=1, loads=copies(arena, 1, [(1, 1)])))

    assert await asyncio.to_thread(rank.died.wait, WAIT_S)


async def test_an_arena_at_its_new_owner_stays_mapped(rank: Rank) -> None:
    arena = await attach(rank)
    first = await rank.actor.attach_arena(arena.location)
    survivor = HostArena.attach(first)
    arena.close()

    second = await rank.actor.attach_arena(survivor.location)

    assert second == first


async def test_another_arena_replaces_the_first(rank: Rank) -> None:
    await attach(rank)
    link = rank.new_scheduler()
    rank.actor.serve(rank.dial)
    other = await attach(rank)
    other.payload(HostPageId(1), 0)[:1] = b"x"

    link.send(StepPlan(step=1, loads=copies(other, 1, [(1, 1)])))
    await asyncio.wait_for(link.receive(), WAIT_S)
    await rank.actor.drain()

    assert as_bytes(rank.pools[0])[1, 0] == ord("x")


async def test_a_shutdown_while_the_link_is_being_made_ends_the_actor(rank: Rank) -> None:
    # The dial returns when shutdown has looked for a link already, and found none.
    link = rank.new_scheduler()
    looked = threading.Event()

    def dial(stop: threading.Event) -> BlockingLink:
        assert stop.wait(WAIT_S)
        looked.wait(WAIT_S)
        return rank.dial(stop)

    rank.actor.serve(dial)
    stopping = asyncio.create_task(rank.actor.shutdown())
    while not rank.actor._stop.is_set():
        await asyncio.sleep(0)
    looked.set()

    await asyncio.wait_for(stopping, WAIT_S)

    with pytest.raises(LinkClosed):
        await asyncio.wait_for(link.receive(), WAIT_S)


async def test_every_thread_that_drives_the_model_enters_it_first(rank: Rank) -> None:
    entered: list[str] = []
    build = rank.actor._build_model
    rank.actor._build_model = lambda config, device: replace(
        build(config, device), enter_thread=lambda: entered.append(threading.current_thread().name)
    )

    await attach(rank)

    assert len(entered) == 1


async def test_it_loads_as_many_pages_as_it_is_told(rank: Rank) -> None:
    assert (await rank.actor.load(5)).num_pages == 5


async def test_it_is_recognised_in_lists_of_actors() -> None:
    actor = GpuActor(config=CONFIG, name="mine", rank=3, incarnation=1)

    assert repr(actor) == "GpuActor(mine, rank 3, cpu)"


async def test_it_finds_its_scheduler_by_address_and_says_who_it_is(tmp_path: Path) -> None:
    links: asyncio.Queue[Link] = asyncio.Queue()
    actor = GpuActor(
        config=CONFIG,
        name="t",
        rank=2,
        incarnation=5,
        build_model=partial(build_sleeping_model, step_s=0.0),
    )
    facts = await actor.load()
    listener: Listener = await listen("tcp:127.0.0.1:0", SCHEDULER, links.put)

    await actor.start(GpuSetup(scheduler_address=listener.address, secret=SECRET))
    link = await asyncio.wait_for(links.get(), WAIT_S)

    assert (link.hello.role, link.hello.rank, link.hello.incarnation) == (Role.GPU, 2, 5)
    assert link.hello.pid == facts.pid
    link.send(rows(1, [0]))
    assert (await receive(link, StepResult)).rank == 2
    await actor.shutdown()
    await listener.close()
