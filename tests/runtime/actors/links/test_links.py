"""One conformance suite for every kind of link."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import numpy as np
import pytest

from raydix.runtime.actors.links import frames
from raydix.runtime.actors.links.blocking_link import connect_blocking
from raydix.runtime.actors.links.link import LinkClosed
from raydix.runtime.actors.links.socket_dialer import connect
from raydix.runtime.messages.plan import StepPlan
from raydix.runtime.testing.links import in_process_blocking_pair, in_process_pair
from tests.runtime.actors.links.link_ends import (
    FAR,
    NEAR,
    SECRET,
    FarEnd,
    LoopLink,
    Pair,
    ThreadedLink,
    large,
    listening,
    numbered,
    short_folder,
    unique_unix_address,
)


@pytest.fixture
def folder() -> Iterator[str]:
    with short_folder() as name:
        yield name


async def _socket_pair(
    address: str, dial: Callable[[str], Awaitable[FarEnd]]
) -> AsyncIterator[Pair]:
    async with listening(address) as (listener, links):
        far = await dial(listener.address)
        yield await links.get(), far
        await far.close()


async def _dial(address: str) -> FarEnd:
    return LoopLink(await connect(address, FAR, SECRET))


async def _dial_blocking(address: str) -> FarEnd:
    return ThreadedLink(await asyncio.to_thread(connect_blocking, address, FAR, SECRET))


@pytest.fixture(
    params=["unix", "tcp", "unix-blocking", "tcp-blocking", "in-process", "in-process-blocking"]
)
async def pair(request: pytest.FixtureRequest, folder: str) -> AsyncIterator[Pair]:
    """(asyncio end, far end) of each kind."""
    if request.param == "in-process":
        near, far = in_process_pair(NEAR, FAR)
        yield near, LoopLink(far)
        return

    if request.param == "in-process-blocking":
        near, blocking = in_process_blocking_pair(NEAR, FAR)
        yield near, ThreadedLink(blocking)
        blocking.close()
        return

    address = unique_unix_address(folder) if request.param.startswith("unix") else "tcp:127.0.0.1:0"
    async for ends in _socket_pair(
        address, _dial_blocking if request.param.endswith("blocking") else _dial
    ):
        yield ends


async def test_ends_know_each_other(pair: Pair) -> None:
    near, far = pair

    assert (near.hello, far.hello) == (FAR, NEAR)


async def test_messages_arrive_in_order_both_ways(pair: Pair) -> None:
    near, far = pair

    for number in range(200):
        near.send(numbered(number))
        await far.send(numbered(-number))

    assert [await far.receive() for _ in range(200)] == [numbered(number) for number in range(200)]
    assert [await near.receive() for _ in range(200)] == [
        numbered(-number) for number in range(200)
    ]


async def test_large_frames_arrive_whole_both_ways(pair: Pair) -> None:
    near, far = pair

    near.send(large(1 << 20))
    sending = asyncio.create_task(far.send(large(1 << 20)))
    to_far, to_near = await asyncio.gather(far.receive(), near.receive())
    await sending

    assert isinstance(to_far, StepPlan)
    assert isinstance(to_near, StepPlan)
    assert np.array_equal(to_far.row_slots, np.arange(1 << 20))
    assert np.array_equal(to_near.row_slots, np.arange(1 << 20))


async def test_far_end_gets_the_rest_then_the_end_when_the_near_end_closes(pair: Pair) -> None:
    near, far = pair

    near.send(numbered(1))
    near.send(numbered(2))
    near.close()

    assert [await far.receive(), await far.receive()] == [numbered(1), numbered(2)]
    with pytest.raises(LinkClosed):
        await far.receive()


async def test_near_end_gets_the_rest_then_the_end_when_the_far_end_closes(pair: Pair) -> None:
    near, far = pair

    await far.send(numbered(1))
    await far.send(numbered(2))
    assert await near.receive() == numbered(1)
    await far.close()

    assert await near.receive() == numbered(2)
    with pytest.raises(LinkClosed):
        await near.receive()
    assert near.is_closed
    with pytest.raises(LinkClosed):
        near.send(numbered(3))


async def test_a_closed_end_neither_sends_nor_receives(pair: Pair) -> None:
    near, far = pair
    await far.send(numbered(1))

    near.close()
    near.close()
    await far.close()
    await far.close()

    for end in (LoopLink(near), far):
        with pytest.raises(LinkClosed):
            await end.receive()
        with pytest.raises(LinkClosed):
            await end.send(numbered(2))


async def test_closing_wakes_a_waiting_receiver(pair: Pair) -> None:
    near, far = pair
    waiting = [asyncio.create_task(near.receive()), asyncio.create_task(far.receive())]
    await asyncio.sleep(0)

    await far.close()

    for receiving in waiting:
        with pytest.raises(LinkClosed):
            await receiving


async def test_a_peer_that_does_not_read_is_cut_off(pair: Pair) -> None:
    near, _ = pair

    async def flood() -> None:
        for _ in range(40):
            near.send(large(1 << 18))
            await asyncio.sleep(0)

    with pytest.raises(LinkClosed, match="did not read"):
        await flood()

    assert near.is_closed
    with pytest.raises(LinkClosed):
        near.send(numbered(1))


async def test_a_message_that_is_too_large_closes_its_link_alone(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = pair
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 1 << 12)

    with pytest.raises(LinkClosed, match="at most 4096"):
        near.send(large(1 << 12))

    assert near.is_closed
    with pytest.raises(LinkClosed):
        near.send(numbered(1))
    with pytest.raises(LinkClosed):
        await far.receive()


async def test_a_far_end_that_sends_too_much_at_once_closes_its_link_alone(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = pair
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 1 << 12)

    with pytest.raises(LinkClosed, match="at most 4096"):
        await far.send(large(1 << 12))

    for end in (LoopLink(near), far):
        with pytest.raises(LinkClosed):
            await end.receive()


async def test_a_sender_waits_for_a_slow_asyncio_reader_and_loses_nothing(pair: Pair) -> None:
    near, far = pair

    async def flood() -> None:
        for _ in range(24):
            await far.send(large(1 << 18))

    sending = asyncio.create_task(flood())
    received = [await near.receive() for _ in range(24)]
    await sending

    assert len(received) == 24


async def test_cancelling_a_receive_loses_no_message(pair: Pair) -> None:
    near, far = pair
    receiving = asyncio.create_task(near.receive())
    await asyncio.sleep(0)

    receiving.cancel()
    await asyncio.gather(receiving, return_exceptions=True)
    await far.send(numbered(7))

    assert await near.receive() == numbered(7)


@pytest.mark.parametrize("is_own", [False, True])
async def test_thread_hears_of_the_end_of_a_link_that_nobody_reads(
    pair: Pair, is_own: bool
) -> None:
    near, far = pair
    if not isinstance(far, ThreadedLink):
        return
    near.send(numbered(1))
    ending = asyncio.create_task(asyncio.to_thread(far.blocking.wait_ended))
    done, _ = await asyncio.wait([ending], timeout=0.05)
    assert not done, "what is to be read is no end"

    if is_own:
        await far.close()
    else:
        near.close()

    await asyncio.wait_for(ending, 20)
    if not is_own:
        assert await far.receive() == numbered(1)
    await far.close()
    await asyncio.wait_for(asyncio.to_thread(far.blocking.wait_ended), 20)


async def test_thread_knows_whether_it_would_wait_for_a_message(pair: Pair) -> None:
    near, far = pair
    if not isinstance(far, ThreadedLink):
        return
    blocking = far.blocking

    async def has_message() -> None:
        while not blocking.has_message():
            await asyncio.sleep(0.001)

    assert not blocking.has_message()
    near.send(numbered(1))
    near.send(numbered(2))
    # The first may bring the second along.
    for number in (1, 2):
        await asyncio.wait_for(has_message(), 20)
        assert await far.receive() == numbered(number)

    assert not blocking.has_message()
    near.close()
    await asyncio.wait_for(has_message(), 20)
    with pytest.raises(LinkClosed):
        await far.receive()
    assert blocking.has_message()


async def test_thread_waits_for_a_message_or_for_a_descriptor(pair: Pair) -> None:
    near, far = pair
    if not isinstance(far, ThreadedLink):
        return
    other = os.eventfd(0)

    def waiting() -> asyncio.Task[bool]:
        return asyncio.create_task(asyncio.to_thread(far.blocking.wait_message_or, other))

    wait = waiting()
    done, _ = await asyncio.wait([wait], timeout=0.05)
    assert not done
    os.eventfd_write(other, 1)
    assert not await asyncio.wait_for(wait, 20)
    os.eventfd_read(other)

    wait = waiting()
    near.send(numbered(1))
    assert await asyncio.wait_for(wait, 20)
    assert await far.receive() == numbered(1)

    wait = waiting()
    near.close()
    assert await asyncio.wait_for(wait, 20)
    await far.close()
    assert await asyncio.wait_for(waiting(), 20)
    os.close(other)


async def test_a_link_that_is_cut_ends_at_its_peer(pair: Pair) -> None:
    near, far = pair
    await asyncio.to_thread(near.cut)
    with pytest.raises(LinkClosed):
        await far.receive()
    assert near.is_closed
    near.cut()
