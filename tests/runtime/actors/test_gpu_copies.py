import asyncio
import threading
from typing import Any

import pytest

from raydix.ids import HostPageId
from raydix.runtime.actors import gpu
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.plan import (
    PageCopies,
    StepPlan,
    StepResult,
    TransfersDone,
)
from raydix.runtime.tiers.cpu_transfers import CpuTransfers
from raydix.runtime.tiers.gpu_pool import as_bytes
from raydix.runtime.tiers.host_arena import HostArena
from raydix.runtime.tiers.transfers import WaitLayer
from tests.runtime.actors.gpu_rank import (
    CONFIG,
    WAIT_S,
    Rank,
    RecordingRunner,
    added,
    attach,
    copies,
    receive,
    rows,
)


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


async def test_draining_waits_for_copies_to_end_and_be_reported(rank: Rank) -> None:
    arena = await attach(rank)
    link = rank.new_scheduler()
    rank.actor.serve(rank.dial)
    link.send(StepPlan(step=1, backups=copies(arena, 1, [(page, page) for page in range(1, 7)])))
    await receive(link, StepResult)

    await rank.actor.drain()

    assert (await receive(link, TransfersDone)).transfer_ids.tolist() == [1]


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


async def test_the_thread_that_attaches_an_arena_enters_the_model(rank: Rank) -> None:
    await attach(rank)

    assert len(rank.entered) == 1


@pytest.mark.parametrize("sections", [{"tp": 2}, {"dp": 2, "ep": 2}])
async def test_a_rank_whose_peers_never_bring_their_shares_ends_with_its_link(
    monkeypatch: pytest.MonkeyPatch, sections: dict[str, int]
) -> None:
    monkeypatch.setattr(gpu, "FINISH_S", 0.01)
    parallel = CONFIG.parallel.model_copy(update=sections)
    released = threading.Event()
    rank = Rank(
        CONFIG.model_copy(update={"parallel": parallel}), delay=lambda transfer: released.wait()
    )
    report = await rank.actor.load()
    await rank.actor.prepare(report.num_pages)
    arena = await attach(rank)
    link = rank.new_scheduler()
    rank.actor.serve(rank.dial)
    link.send(StepPlan(step=1, loads=copies(arena, 7, [(2, 3)])))
    await receive(link, StepResult)

    link.close()

    assert await asyncio.to_thread(rank.died.wait, WAIT_S)
    released.set()
    await rank.actor.shutdown()


@pytest.mark.parametrize("num_loads", [0, 1])
async def test_backups_end_though_the_link_is_lost_while_their_rows_run(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, num_loads: int
) -> None:
    arena = await attach(rank)
    is_running, may_end = threading.Event(), threading.Event()
    execute = RecordingRunner.execute

    def execute_late(runner: RecordingRunner, plan: StepPlan, wait_layer: WaitLayer) -> Any:
        is_running.set()
        assert may_end.wait(WAIT_S)
        return execute(runner, plan, wait_layer)

    monkeypatch.setattr(RecordingRunner, "execute", execute_late)
    as_bytes(rank.pools[0])[1:4] = 7
    link = rank.new_scheduler()
    rank.actor.serve(rank.dial)
    backups = copies(arena, 1, [(page, page) for page in range(1, 4)])
    loads = copies(arena, 2, [(5, 5)] * num_loads)
    link.send(rows(1, [0], added=(added(0),), backups=backups, loads=loads))

    assert await asyncio.to_thread(is_running.wait, WAIT_S)
    link.close()
    following = rank.new_scheduler()
    may_end.set()
    following.send(StepPlan(step=1))
    await receive(following, StepResult)

    assert all(bytes(arena.payload(HostPageId(page), 0)).strip(b"\7") == b"" for page in (1, 2, 3))
    assert rank.calls.applied[1].removed_slots.tolist() == [0]
    assert (await rank.actor.stats())["num_running"] == 0


async def test_backups_of_a_plan_whose_rows_fail_never_begin(rank: Rank) -> None:
    arena = await attach(rank)
    as_bytes(rank.pools[0])[1] = 7
    link = rank.new_scheduler()
    rank.actor.serve(rank.dial)
    link.send(StepPlan(step=665))
    await receive(link, StepResult)

    link.send(rows(666, [0], backups=copies(arena, 1, [(1, 1)])))

    assert await asyncio.to_thread(rank.died.wait, WAIT_S)
    await rank.actor.shutdown()
    assert not any(bytes(arena.payload(HostPageId(1), 0)))


async def test_copies_wait_for_no_step_that_was_enqueued_before(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    arena = await attach(rank)
    link = rank.new_scheduler()
    rank.actor.serve(rank.dial)
    begun: list[bool] = []
    start = CpuTransfers.start

    def start_and_note(self: CpuTransfers, loads: PageCopies, backups: PageCopies) -> None:
        begun.append(rank.is_beside_steps)
        start(self, loads, backups)

    monkeypatch.setattr(CpuTransfers, "start", start_and_note)
    link.send(rows(1, [0], added=(added(0),), backups=copies(arena, 1, [(1, 1)])))
    link.send(rows(2, [0], backups=copies(arena, 2, [(2, 2)]), loads=copies(arena, 3, [(3, 3)])))
    for _ in range(5):
        await asyncio.wait_for(link.receive(), WAIT_S)
    assert begun == [True, True]
