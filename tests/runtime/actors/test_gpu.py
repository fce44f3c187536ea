import asyncio
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

from raydix.runtime.actors import gpu, rank_threads
from raydix.runtime.actors.gpu import GpuActor, GpuSetup
from raydix.runtime.actors.gpu_model import GpuModel, LoadedGpuModel, RankPlace
from raydix.runtime.actors.links.link import BlockingLink, Link, LinkClosed
from raydix.runtime.actors.links.socket_listener import Listener, listen
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.hello import Role
from raydix.runtime.messages.host import ProcessDrained
from raydix.runtime.messages.plan import StepPlan, StepResult
from raydix.runtime.testing.links import in_process_blocking_pair
from raydix.runtime.testing.sleeping_runner import build_sleeping_model
from raydix.runtime.tiers.transfers import WaitLayer
from tests.runtime.actors.gpu_rank import (
    CONFIG,
    GPU,
    SCHEDULER,
    SECRET,
    WAIT_S,
    Rank,
    added,
    attach,
    copies,
    receive,
    rows,
)


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


async def test_rank_without_rows_steps_with_the_others_of_its_group(rank: Rank) -> None:
    link = rank.new_scheduler()
    rank.actor.serve(rank.dial)

    for step, group_tokens in enumerate([[0, 16], [0, 0], [1, 0]], start=1):
        link.send(StepPlan(step=step, group_tokens=int32_array(group_tokens)))
    results = [await receive(link, StepResult) for _ in range(3)]

    assert rank.calls.executed == [1, 3]
    assert [len(result.token_ids) for result in results] == [0, 0, 0]


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
    while not rank.actor._serving().is_stopping.is_set():
        await asyncio.sleep(0)
    looked.set()

    await asyncio.wait_for(stopping, WAIT_S)

    with pytest.raises(LinkClosed):
        await asyncio.wait_for(link.receive(), WAIT_S)


class WaitingRunner:
    """Waits in each step, as for a peer, until its model is closed."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.is_closed = threading.Event()

    def apply(self, plan: StepPlan) -> None:
        """Nothing to do."""

    def execute(self, plan: StepPlan, wait_layer: WaitLayer) -> NoReturn:
        self.has_begun.set()
        assert self.is_closed.wait(WAIT_S)
        raise RuntimeError("the peer is gone")


async def waiting_rank(
    runner: WaitingRunner, config: EngineConfig = CONFIG, on_fatal: Callable[[], None] = int
) -> tuple[GpuActor, Link]:
    """A rank that is in a step, and its Scheduler's end of the link."""

    def build(config: EngineConfig, place: RankPlace) -> LoadedGpuModel:
        loaded = build_sleeping_model(config, place, step_s=0.0)

        def prepare(num_pages: tuple[int, ...]) -> GpuModel:
            model = loaded.prepare(num_pages)
            return replace(model, runner=runner, close=runner.is_closed.set)

        return replace(loaded, prepare=prepare)

    actor = GpuActor(
        config=config, name="t", rank=0, incarnation=1, build_model=build, on_fatal=on_fatal
    )
    await actor.prepare((await actor.load()).num_pages)
    link, blocking = in_process_blocking_pair(SCHEDULER, GPU)
    actor.serve(lambda stop: blocking)
    link.send(rows(1, [0]))
    assert await asyncio.to_thread(runner.has_begun.wait, WAIT_S)
    return actor, link


async def test_a_shutdown_ends_a_step_that_waits_for_a_peer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu, "FINISH_S", 0.0)
    monkeypatch.setattr(rank_threads, "FINISH_S", 0.0)
    runner = WaitingRunner()
    actor, _ = await waiting_rank(runner)

    await asyncio.wait_for(actor.shutdown(), WAIT_S)

    assert runner.is_closed.is_set()


@pytest.mark.parametrize("sections", [{}, {"tp": 2}, {"dp": 2, "ep": 2}])
async def test_a_rank_in_a_step_that_never_ends_ends_with_its_link(
    monkeypatch: pytest.MonkeyPatch, sections: dict[str, int]
) -> None:
    monkeypatch.setattr(gpu, "FINISH_S", 0.01)
    monkeypatch.setattr(gpu, "ALONE_S", 0.01)
    monkeypatch.setattr(rank_threads, "FINISH_S", 0.01)
    parallel = CONFIG.parallel.model_copy(update=sections)
    died, runner = threading.Event(), WaitingRunner()
    config = CONFIG.model_copy(update={"parallel": parallel})
    actor, link = await waiting_rank(runner, config, died.set)

    link.close()

    assert await asyncio.to_thread(died.wait, WAIT_S / 2)
    assert not runner.is_closed.is_set()
    await actor.shutdown()


async def test_its_pools_are_as_large_as_it_is_told(rank: Rank) -> None:
    assert (await rank.actor.load()).num_pages == (8,)

    await rank.actor.prepare((5,))

    # One more, for padding.
    assert [len(pool) for pool in rank.pools] == [6]


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
    await actor.prepare((await actor.load()).num_pages)
    listener: Listener = await listen("tcp:127.0.0.1:0", SCHEDULER, SECRET, links.put)

    await actor.start(GpuSetup(scheduler_address=listener.address, secret=SECRET))
    link = await asyncio.wait_for(links.get(), WAIT_S)

    assert (link.hello.role, link.hello.rank, link.hello.incarnation) == (Role.GPU, 2, 5)
    assert link.hello.pid == os.getpid()
    link.send(rows(1, [0]))
    assert (await receive(link, StepResult)).rank == 2
    await actor.shutdown()
    await listener.close()


async def test_every_thread_of_its_own_but_the_reporter_enters_the_model(rank: Rank) -> None:
    link = rank.new_scheduler()
    rank.actor.serve(rank.dial)
    link.send(StepPlan(step=1))

    await receive(link, StepResult)

    assert sorted(rank.entered) == ["completer", "launcher"]
