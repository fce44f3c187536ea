"""The Scheduler actor with its real links: one peer's trouble is nobody else's."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from raydix.ids import AskingId, Rank, RequestId
from raydix.runtime.actors.links.link import Link, LinkClosed
from raydix.runtime.actors.links.socket_dialer import connect
from raydix.runtime.actors.scheduler import SchedulerActor, SchedulerSetup
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import (
    FailureKind,
    FinishReason,
    StopRequest,
    SubmitRequest,
    TokenFrame,
)
from raydix.runtime.messages.hello import Hello, Role
from raydix.runtime.messages.plan import DeviceSampling, StepPlan, StepResult, TokenLogprobs
from raydix.runtime.model.grammars.compiling import CompilerSetup
from raydix.runtime.scheduler.phase import Phase
from tests.runtime.actors.links.link_ends import short_folder
from tests.runtime.scheduler.core_driver import BASE

SECRET = b"secret"
NUM_TOKENS = 300
SETTINGS = replace(
    BASE, num_pages=(400,), max_model_len=400, prefill_budget_tokens=64, has_host_memory=False
)
NUM_LOGPROBS = 2000
WIDE = TokenLogprobs(
    token_ids=tuple(range(70_000, 70_000 + NUM_LOGPROBS)),
    logprobs=(-1.5,) * NUM_LOGPROBS,
    ranks=tuple(range(1, 1 + NUM_LOGPROBS)),
)


def hello(role: Role, name: str, rank: int | None = None) -> Hello:
    own_rank = None if rank is None else Rank(rank)
    return Hello(role=role, name=name, incarnation=1, pid=os.getpid(), rank=own_rank)


def submit(
    asking: int, name: str, num_logprobs: int | None = None, max_tokens: int = NUM_TOKENS
) -> SubmitRequest:
    return SubmitRequest(
        asking=AskingId(asking),
        request_id=RequestId(name),
        token_ids=int32_array([1, 2, 3]),
        sampling=DeviceSampling(seed=0, num_logprobs=num_logprobs),
        max_tokens=max_tokens,
    )


class Bench:
    """A Scheduler, and a rank that samples 5, with wide logprobs for requests that want some."""

    def __init__(self, folder: str) -> None:
        self.address = f"unix:{folder}/s"
        self.num_fatal = 0
        self.actor = SchedulerActor(name="e", incarnation=1, on_fatal=self._fail)
        self._rank: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.start_scheduler(Phase.AWAKE)
        link = await connect(self.address, hello(Role.GPU, "g", 0), SECRET)
        self._rank = asyncio.create_task(self._serve_plans(link))
        await self.actor.wait_ready()

    async def start_scheduler(self, phase: Phase) -> None:
        await self.actor.start(
            SchedulerSetup(
                settings=SETTINGS,
                addresses=(self.address,),
                secret=SECRET,
                compilers=CompilerSetup(model_path="", vocab_size=100, eos_token_ids=()),
                phase=phase,
            )
        )

    async def stop(self) -> None:
        await self.actor.stop()
        if self._rank is not None:
            await self._rank

    async def connect(self, name: str = "c", number: int = 1) -> Link:
        own = replace(hello(Role.CLIENT, name), incarnation=number)
        return await connect(self.address, own, SECRET)

    def _fail(self) -> None:
        self.num_fatal += 1

    async def _serve_plans(self, link: Link) -> None:
        wide_slots: set[int] = set()
        try:
            while True:
                plan = await link.receive()
                assert isinstance(plan, StepPlan)

                wide_slots.difference_update(plan.removed_slots.tolist())
                wide_slots.update(
                    each.slot for each in plan.added if each.sampling.num_logprobs is not None
                )

                rows = plan.row_slots[plan.row_output_positions >= 0].tolist()
                logprobs = tuple(WIDE if slot in wide_slots else None for slot in rows)
                tokens = int32_array([5] * len(rows))

                link.send(
                    StepResult(
                        rank=0, step=plan.step, token_ids=tokens, logprobs=logprobs, compute_s=0.001
                    )
                )
        except LinkClosed:
            return


@pytest.fixture
def folder() -> Iterator[str]:
    with short_folder() as name:
        yield name


@pytest.fixture
async def bench(folder: str) -> AsyncIterator[Bench]:
    bench = Bench(folder)
    await bench.start()
    yield bench
    await bench.stop()
    assert bench.num_fatal == 0


async def read_to_end(link: Link, asking: int) -> list[int]:
    """The tokens of one asking."""
    tokens: list[int] = []
    while True:
        frame = await link.receive()
        assert isinstance(frame, TokenFrame)

        tokens += [
            token
            for each, token in zip(frame.askings, frame.token_ids.tolist(), strict=True)
            if each == asking
        ]

        for delta in frame.deltas:
            if delta.asking == asking:
                tokens += delta.token_ids.tolist()
                assert delta.failure is None
                if delta.finished is not None:
                    return tokens


async def test_a_client_that_does_not_read_is_given_up_and_the_others_are_served(
    bench: Bench,
) -> None:
    silent, other = await bench.connect("silent"), await bench.connect("other")
    for asking in range(4):
        silent.send(submit(asking, f"s{asking}", num_logprobs=20))

    other.send(submit(1, "o"))
    assert len(await read_to_end(other, 1)) == NUM_TOKENS

    async with asyncio.timeout(60):
        while bench.actor.stats()["num_clients"] > 1:
            await asyncio.sleep(0)
    stats = bench.actor.stats()
    assert (
        stats["num_slow_clients"],
        stats["num_requests_running"],
        stats["num_requests_waiting"],
    ) == (1, 0, 0)
    bench.actor.check()

    other.send(submit(2, "s0", max_tokens=3))
    assert await read_to_end(other, 2) == [5, 5, 5]


async def test_a_client_that_says_what_no_client_says_is_dropped_alone(bench: Bench) -> None:
    odd, other = await bench.connect("odd"), await bench.connect("other")
    odd.send(submit(1, "odd"))
    odd.send(hello(Role.CLIENT, "again"))
    other.send(submit(1, "o"))
    assert len(await read_to_end(other, 1)) == NUM_TOKENS
    async with asyncio.timeout(10):
        while not odd.is_closed:
            await asyncio.sleep(0)
    assert bench.actor.stats()["num_clients"] == 1
    assert bench.actor.stats()["num_slow_clients"] == 0


async def test_a_client_that_floods_the_scheduler_does_not_keep_others_from_it(
    bench: Bench,
) -> None:
    loud, other = await bench.connect("loud"), await bench.connect("other")
    for _ in range(20_000):
        loud.send(StopRequest(asking=AskingId(1), request_id=RequestId("nothing")))
    other.send(submit(1, "o", max_tokens=2))
    assert await read_to_end(other, 1) == [5, 5]
    assert bench.actor.stats()["finished_length"] == 1


async def test_an_id_used_again_at_once_gets_the_news_of_its_new_use(bench: Bench) -> None:
    client = await bench.connect()
    client.send(submit(1, "a"))
    client.send(StopRequest(asking=AskingId(1), request_id=RequestId("a")))
    client.send(submit(2, "a", max_tokens=3))
    client.send(StopRequest(asking=AskingId(1), request_id=RequestId("a")))
    endings: dict[int, FinishReason | None] = {}
    while 2 not in endings:
        frame = await client.receive()
        assert isinstance(frame, TokenFrame)
        endings |= {
            delta.asking: delta.finished for delta in frame.deltas if delta.finished is not None
        }
    assert endings == {1: FinishReason.STOP, 2: FinishReason.LENGTH}


async def test_a_client_that_comes_again_before_its_loss_is_noticed_goes_on(bench: Bench) -> None:
    former = await bench.connect("c", 1)
    former.send(submit(1, "a"))
    await former.receive()
    newer, other = await bench.connect("c", 2), await bench.connect("other")
    newer.send(replace(submit(2, "a"), known_output=int32_array([5] * 10)))
    assert len(await read_to_end(newer, 2)) == NUM_TOKENS - 10
    with pytest.raises(LinkClosed):
        await read_to_end(former, 1)

    newer.send(submit(3, "b"))
    await newer.receive()
    other.send(submit(1, "b"))
    frame = await other.receive()
    assert isinstance(frame, TokenFrame)
    [refused] = frame.deltas
    assert refused.failure is not None
    assert "'b' is in use" in refused.failure.message
    assert len(await read_to_end(newer, 3)) > 0
    bench.actor.check()


async def test_a_link_that_arrives_after_a_newer_one_of_its_client_is_closed(bench: Bench) -> None:
    newer, late = await bench.connect("c", 2), await bench.connect("c", 1)
    with pytest.raises(LinkClosed):
        await late.receive()
    newer.send(submit(1, "a", max_tokens=3))
    assert await read_to_end(newer, 1) == [5, 5, 5]


async def test_a_stop_does_not_wait_for_what_waits_for_a_wake(folder: str) -> None:
    bench = Bench(folder)
    await bench.start_scheduler(Phase.ASLEEP)
    try:
        link = await bench.connect()
        link.send(submit(1, "parked"))
        while bench.actor.stats()["num_requests_waiting"] == 0:
            await asyncio.sleep(0.01)
        async with asyncio.timeout(30):
            assert await bench.actor.drain(600.0)
            frame = await link.receive()
        assert isinstance(frame, TokenFrame)
        [delta] = frame.deltas
        assert delta.failure is not None
        assert delta.failure.kind is FailureKind.SHUTTING_DOWN
    finally:
        await bench.stop()
