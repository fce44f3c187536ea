"""One conformance suite for every kind of link."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from raydix.errors import ConfigError
from raydix.runtime.actors.links.address import parse_address, unique_unix_address
from raydix.runtime.actors.links.blocking_link import connect_blocking
from raydix.runtime.actors.links.frames import FrameReader, FrameTooLarge, frame
from raydix.runtime.actors.links.in_process import in_process_blocking_pair, in_process_pair
from raydix.runtime.actors.links.link import BlockingLink, Link, LinkClosed, LinkRefused
from raydix.runtime.actors.links.socket_link import Listener, connect, listen, retry_delays_s
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.codec import Message
from raydix.runtime.messages.hello import Hello, Role
from raydix.runtime.messages.host import CopiesDrained
from raydix.runtime.messages.plan import StepPlan

SECRET = b"s3cret"
NEAR = Hello(secret=SECRET, role=Role.SCHEDULER, name="scheduler", incarnation=1, pid=os.getpid())
FAR = Hello(secret=SECRET, role=Role.CLIENT, name="far", incarnation=2, pid=os.getpid())
ROOT = Path(__file__).parents[3]


class ThreadedLink:
    """A blocking end whose calls run in threads, so that the suite can treat it as an asyncio end."""

    def __init__(self, blocking: BlockingLink) -> None:
        self.blocking = blocking

    @property
    def hello(self) -> Hello:
        return self.blocking.hello

    async def send(self, message: Message) -> None:
        await asyncio.to_thread(self.blocking.send, message)

    async def receive(self) -> Message:
        return await asyncio.to_thread(self.blocking.receive)

    async def close(self) -> None:
        await asyncio.to_thread(self.blocking.close)


class LoopLink:
    """An asyncio end with the same awaitable calls."""

    def __init__(self, link: Link) -> None:
        self.link = link

    @property
    def hello(self) -> Hello:
        return self.link.hello

    async def send(self, message: Message) -> None:
        self.link.send(message)

    async def receive(self) -> Message:
        return await self.link.receive()

    async def close(self) -> None:
        self.link.close()


FarEnd = ThreadedLink | LoopLink
Pair = tuple[Link, FarEnd]


@contextlib.asynccontextmanager
async def listening(address: str) -> AsyncIterator[tuple[Listener, "asyncio.Queue[Link]"]]:
    links: asyncio.Queue[Link] = asyncio.Queue()
    listener = await listen(address, NEAR, links.put)
    try:
        yield listener, links
    finally:
        await listener.close()


@pytest.fixture
def folder() -> AsyncIterator[str]:  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as name:  # tmp_path may exceed a socket path's 107 bytes
        yield name


async def _socket_pair(address: str, dial: Callable[[str], Awaitable[FarEnd]]) -> AsyncIterator[Pair]:
    async with listening(address) as (listener, links):
        far = await dial(listener.address)
        yield await links.get(), far
        await far.close()


async def _dial(address: str) -> FarEnd:
    return LoopLink(await connect(address, FAR))


async def _dial_blocking(address: str) -> FarEnd:
    return ThreadedLink(await asyncio.to_thread(connect_blocking, address, FAR))


@pytest.fixture(params=["unix", "tcp", "unix-blocking", "tcp-blocking", "in-process", "in-process-blocking"])
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
    async for ends in _socket_pair(address, _dial_blocking if request.param.endswith("blocking") else _dial):
        yield ends


def numbered(number: int) -> CopiesDrained:
    return CopiesDrained(host_incarnation=number)


def large(num_int32: int) -> StepPlan:
    return StepPlan(step=1, row_slots=int32_array(np.arange(num_int32)))


async def test_ends_know_each_other(pair: Pair) -> None:
    near, far = pair

    assert (near.hello, far.hello) == (FAR, NEAR)


async def test_messages_arrive_in_order_both_ways(pair: Pair) -> None:
    near, far = pair

    for number in range(200):
        near.send(numbered(number))
        await far.send(numbered(-number))

    assert [await far.receive() for _ in range(200)] == [numbered(number) for number in range(200)]
    assert [await near.receive() for _ in range(200)] == [numbered(-number) for number in range(200)]


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


# What only sockets have -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["unix", "tcp"])
async def test_a_wrong_secret_is_refused_before_anything_else(scheme: str, folder: str) -> None:
    stranger = Hello(secret=b"guess", role=Role.CLIENT, name="stranger", incarnation=1, pid=1)
    address = unique_unix_address(folder) if scheme == "unix" else "tcp:127.0.0.1:0"
    async with listening(address) as (listener, links):
        with pytest.raises(LinkRefused):
            await connect(listener.address, stranger)
        with pytest.raises(LinkRefused):
            await asyncio.to_thread(connect_blocking, listener.address, stranger)

        assert links.empty()


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", frame(b"\xc1"), frame(b"\x91\x01"), frame(b"x" * 5000)])
async def test_a_connection_that_is_no_hello_is_dropped(data: bytes, folder: str) -> None:
    async with listening(unique_unix_address(folder)) as (listener, links):
        reader, writer = await asyncio.open_unix_connection(listener.address.removeprefix("unix:"))
        writer.write(data)

        assert await reader.read() == b""
        assert links.empty()
        writer.close()


_PEER = """
import sys, time
from raydix.runtime.actors.links.blocking_link import connect_blocking
from raydix.runtime.messages.hello import Hello, Role
from raydix.runtime.messages.host import CopiesDrained
link = connect_blocking(sys.argv[1], Hello(secret=b"s3cret", role=Role.GPU, name="gpu0", incarnation=1, pid=1))
link.send(CopiesDrained(host_incarnation=5))
link.receive()
"""


async def test_the_death_of_the_peer_process_ends_the_link(folder: str) -> None:
    async with listening(unique_unix_address(folder)) as (listener, links):
        process = subprocess.Popen([sys.executable, "-c", _PEER, listener.address], cwd=ROOT)
        link = await links.get()
        assert await link.receive() == numbered(5)

        process.send_signal(signal.SIGKILL)

        with pytest.raises(LinkClosed):
            await link.receive()
        process.wait()


async def test_connecting_waits_for_a_listener_to_come(folder: str) -> None:
    address = unique_unix_address(folder)
    connecting = asyncio.create_task(connect(address, FAR))
    await asyncio.sleep(0)

    async with listening(address) as (_, links):
        link = await connecting
        assert (await links.get()).hello == FAR
        link.close()


async def test_connecting_gives_up_in_the_end(folder: str) -> None:
    address = unique_unix_address(folder)
    stop = threading.Event()
    stop.set()

    with pytest.raises(LinkClosed, match="nobody listens"):
        await connect(address, FAR, timeout_s=0.02)
    with pytest.raises(LinkClosed, match="nobody listens"):
        connect_blocking(address, FAR, stop=stop)


async def test_a_new_listener_takes_over_the_address_of_a_dead_one(folder: str) -> None:
    address = unique_unix_address(folder)
    first = await listen(address, NEAR, asyncio.Queue[Link]().put)
    second = await listen(address, NEAR, asyncio.Queue[Link]().put)

    await first.close()
    link = await connect(address, FAR, timeout_s=0.0)

    link.close()
    await second.close()
    assert not os.path.exists(address.removeprefix("unix:"))


async def test_closing_a_listener_ends_its_links_and_awaits_those_who_serve_them(folder: str) -> None:
    ended = []

    async def serve(link: Link) -> None:
        with pytest.raises(LinkClosed):
            await link.receive()
        ended.append(link.hello.name)

    listener = await listen(unique_unix_address(folder), NEAR, serve)
    link = await connect(listener.address, FAR)

    await listener.close()

    assert ended == ["far"]
    with pytest.raises(LinkClosed):
        await link.receive()


async def test_a_failing_server_task_closes_its_link_alone(folder: str, caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_: Link) -> None:
        raise ValueError("broken on purpose")

    listener = await listen(unique_unix_address(folder), NEAR, fail)
    link = await connect(listener.address, FAR)

    with pytest.raises(LinkClosed):
        await link.receive()

    assert "broken on purpose" in caplog.text
    await listener.close()


async def test_blocking_senders_in_several_threads_do_not_mix_frames(folder: str) -> None:
    async with listening(unique_unix_address(folder)) as (listener, links):
        blocking = await asyncio.to_thread(connect_blocking, listener.address, FAR)
        link = await links.get()

        def flood() -> None:
            for _ in range(50):
                blocking.send(large(1 << 12))

        threads = [threading.Thread(target=flood) for _ in range(3)]
        for thread in threads:
            thread.start()

        received = [await link.receive() for _ in range(150)]

        assert all(isinstance(message, StepPlan) and len(message.row_slots) == 1 << 12 for message in received)
        for thread in threads:
            thread.join()
        await asyncio.to_thread(blocking.close)


# Parts ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "unix:", "tcp:host", "tcp:host:99999", "tcp::5", "file:/x", "unix:/" + "x" * 107])
def test_bad_addresses_are_config_errors(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_address(text)


@pytest.mark.parametrize("text", ["unix:/tmp/a.sock", "tcp:127.0.0.1:80", "tcp:::1:80"])
def test_addresses_survive_the_round_trip(text: str) -> None:
    assert str(parse_address(text)) == text


def test_frames_are_cut_wherever_the_stream_breaks() -> None:
    bodies = [b"", b"a", b"bc" * 300]
    stream = b"".join(frame(body) for body in bodies)
    reader = FrameReader(1000)
    taken = []

    for index in range(len(stream)):
        reader.feed(stream[index : index + 1])
        while (body := reader.take()) is not None:
            taken.append(body)

    assert taken == bodies


def test_an_announced_giant_is_refused() -> None:
    reader = FrameReader(10)
    reader.feed(frame(b"x" * 11)[:4])

    with pytest.raises(FrameTooLarge):
        reader.take()


def test_retries_are_bounded_by_the_timeout() -> None:
    assert sum(retry_delays_s(3.0)) == pytest.approx(3.0)
    assert retry_delays_s(0.0) == []
