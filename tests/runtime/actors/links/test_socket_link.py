"""What only links over sockets have: strangers, deaths, listeners that come and go."""

import asyncio
import contextlib
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from raydix.runtime.actors.links import blocking_handshake, socket_link, socket_listener
from raydix.runtime.actors.links.blocking_link import connect_blocking
from raydix.runtime.actors.links.frames import MAX_FRAME_BYTES, frame
from raydix.runtime.actors.links.handshake import (
    GREETING,
    NONCE_BYTES,
    DialerHandshake,
    new_nonce,
)
from raydix.runtime.actors.links.link import AddressTaken, Link, LinkClosed, LinkRefused, LinkSilent
from raydix.runtime.actors.links.socket_dialer import connect
from raydix.runtime.actors.links.socket_link import SocketLink
from raydix.runtime.actors.links.socket_listener import listen
from raydix.runtime.messages.hello import Hello, Role
from raydix.runtime.messages.plan import StepPlan
from tests.runtime.actors.links.link_ends import (
    FAR,
    NEAR,
    SECRET,
    large,
    listening,
    numbered,
    short_folder,
    unique_unix_address,
)

ROOT = Path(__file__).parents[4]
CHALLENGE_FRAME_BYTES = 4 + len(GREETING) + NONCE_BYTES


@pytest.fixture
def folder() -> Iterator[str]:
    with short_folder() as name:
        yield name


@pytest.mark.parametrize("scheme", ["unix", "tcp"])
async def test_a_wrong_secret_is_refused_before_anything_else(scheme: str, folder: str) -> None:
    stranger = Hello(role=Role.CLIENT, name="stranger", incarnation=1, pid=1)
    address = unique_unix_address(folder) if scheme == "unix" else "tcp:127.0.0.1:0"
    async with listening(address) as (listener, links):
        with pytest.raises(LinkRefused):
            await connect(listener.address, stranger, b"guess")
        with pytest.raises(LinkRefused):
            await asyncio.to_thread(connect_blocking, listener.address, stranger, b"guess")

        assert links.empty()


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", frame(b""), frame(b"x" * 200), frame(b"x" * 5000)]
)
async def test_a_connection_that_is_no_hello_is_dropped(data: bytes, folder: str) -> None:
    async with listening(unique_unix_address(folder)) as (listener, links):
        reader, writer = await asyncio.open_unix_connection(listener.address.removeprefix("unix:"))
        writer.write(data)

        assert len(await reader.read()) == CHALLENGE_FRAME_BYTES
        assert links.empty()
        writer.close()


async def test_a_connection_that_says_nothing_is_dropped(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_link, "HANDSHAKE_S", 0.01)
    async with listening(unique_unix_address(folder)) as (listener, _):
        reader, writer = await asyncio.open_unix_connection(listener.address.removeprefix("unix:"))

        assert len(await reader.read()) == CHALLENGE_FRAME_BYTES
        writer.close()


async def test_strangers_who_say_nothing_make_room_for_peers_who_know_the_secret(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_listener, "_MAX_STRANGERS", 4)
    async with listening(unique_unix_address(folder)) as (listener, links):
        path = listener.address.removeprefix("unix:")
        strangers = [await asyncio.open_unix_connection(path) for _ in range(10)]

        link = await connect(listener.address, FAR, SECRET)

        assert (await links.get()).hello == FAR
        for reader, _ in strangers[:6]:
            assert len(await reader.read()) == CHALLENGE_FRAME_BYTES
        for _, writer in strangers:
            writer.close()
        link.close()


@pytest.mark.parametrize("role", [Role.CLIENT, Role.GPU])
async def test_what_a_frame_may_hold_is_bounded_by_what_its_peer_may_need(
    role: Role, folder: str
) -> None:
    links: asyncio.Queue[Link] = asyncio.Queue()
    listener = await listen(
        unique_unix_address(folder), NEAR, SECRET, links.put, max_client_frame_bytes=1000
    )
    reader, writer = await asyncio.open_unix_connection(listener.address.removeprefix("unix:"))
    bound = 1000 if role is Role.CLIENT else MAX_FRAME_BYTES
    dialer = DialerHandshake(replace(FAR, role=role), SECRET, new_nonce())
    answer = dialer.take((await reader.readexactly(CHALLENGE_FRAME_BYTES))[4:])
    assert answer is not None
    writer.write(frame(answer) + struct.pack("<I", bound + 1))

    with pytest.raises(LinkClosed, match=f"at most {bound} are accepted"):
        await (await links.get()).receive()

    await reader.read()
    writer.close()
    await listener.close()


async def test_a_challenge_that_comes_byte_by_byte_is_not_waited_for(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking_handshake, "HANDSHAKE_S", 0.2)

    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            for byte in frame(GREETING + bytes(NONCE_BYTES)):
                writer.write(bytes((byte,)))
                await writer.drain()
                await asyncio.sleep(0.05)
        writer.close()

    server = await asyncio.start_unix_server(drip, f"{folder}/slow")
    with pytest.raises(LinkSilent, match="has not answered a greeting"):
        await asyncio.to_thread(connect_blocking, f"unix:{folder}/slow", FAR, SECRET)
    server.close()


async def test_closing_does_not_wait_for_ever_for_a_peer_that_does_not_read(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_link, "_CLOSE_FLUSH_S", 0.01)
    async with listening(unique_unix_address(folder)) as (listener, links):
        blocking = await asyncio.to_thread(connect_blocking, listener.address, FAR, SECRET)
        link = await links.get()
        assert isinstance(link, SocketLink)
        link.send(large(1 << 20))
        assert link.buffered_bytes > 0

        link.close()
        await asyncio.wait_for(link.lost, 10)

        await asyncio.to_thread(blocking.close)


_PEER = """
import sys, time
from raydix.runtime.actors.links.blocking_link import connect_blocking
from raydix.runtime.messages.hello import Hello, Role
from raydix.runtime.messages.host import ProcessDrained
hello = Hello(role=Role.GPU, name="gpu0", incarnation=1, pid=1)
link = connect_blocking(sys.argv[1], hello, b"s3cret")
link.send(ProcessDrained(pid=5))
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
    connecting = asyncio.create_task(connect(address, FAR, SECRET))
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
        await connect(address, FAR, SECRET, timeout_s=0.02)
    with pytest.raises(LinkClosed, match="nobody listens"):
        connect_blocking(address, FAR, SECRET, stop=stop)


@pytest.mark.parametrize("scheme", ["unix", "tcp"])
async def test_a_second_listener_at_the_address_of_a_living_one_is_refused(
    scheme: str, folder: str
) -> None:
    address = unique_unix_address(folder) if scheme == "unix" else "tcp:127.0.0.1:0"
    async with listening(address) as (first, links):
        with pytest.raises(AddressTaken, match="another listener lives"):
            await listen(first.address, NEAR, SECRET, asyncio.Queue[Link]().put)

        link = await connect(first.address, FAR, SECRET, timeout_s=0.0)
        assert (await links.get()).hello == FAR
        link.close()


_LISTENER = """
import asyncio, sys
from raydix.runtime.actors.links.socket_listener import listen
from raydix.runtime.messages.hello import Hello, Role
async def main():
    own = Hello(role=Role.SCHEDULER, name="first", incarnation=1, pid=1)
    await listen(sys.argv[1], own, b"s3cret", asyncio.Queue().put)
    print("up", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


async def test_a_new_listener_takes_over_the_address_of_a_dead_one(folder: str) -> None:
    address = unique_unix_address(folder)
    with subprocess.Popen(
        [sys.executable, "-c", _LISTENER, address], cwd=ROOT, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        await asyncio.to_thread(process.stdout.readline)
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(AddressTaken):
            await listen(address, NEAR, SECRET, asyncio.Queue[Link]().put)
        process.kill()
    assert os.path.exists(address.removeprefix("unix:"))

    async with listening(address) as (_, links):
        link = await connect(address, FAR, SECRET, timeout_s=0.0)
        assert link.hello == NEAR
        await links.get()
        link.close()

    assert os.listdir(folder) == []


async def test_a_listener_that_cannot_bind_leaves_the_address_free(folder: str) -> None:
    path = Path(folder) / "s"
    path.mkdir()
    with pytest.raises(OSError, match=r"in use|directory"):
        await listen(f"unix:{path}", NEAR, SECRET, asyncio.Queue[Link]().put)
    assert path.is_dir()
    path.rmdir()

    async with listening(f"unix:{path}"):
        assert path.exists()


async def test_closing_a_listener_ends_its_links_and_awaits_those_who_serve_them(
    folder: str,
) -> None:
    ended = []

    async def serve(link: Link) -> None:
        with pytest.raises(LinkClosed):
            await link.receive()
        ended.append(link.hello.name)

    listener = await listen(unique_unix_address(folder), NEAR, SECRET, serve)
    link = await connect(listener.address, FAR, SECRET)

    await listener.close()

    assert ended == ["far"]
    with pytest.raises(LinkClosed):
        await link.receive()


async def test_a_failing_server_task_closes_its_link_alone(
    folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_: Link) -> None:
        raise ValueError("broken on purpose")

    listener = await listen(unique_unix_address(folder), NEAR, SECRET, fail)
    link = await connect(listener.address, FAR, SECRET)

    with pytest.raises(LinkClosed):
        await link.receive()

    assert "broken on purpose" in caplog.text
    await listener.close()


async def test_blocking_senders_in_several_threads_do_not_mix_frames(folder: str) -> None:
    async with listening(unique_unix_address(folder)) as (listener, links):
        blocking = await asyncio.to_thread(connect_blocking, listener.address, FAR, SECRET)
        link = await links.get()

        def flood() -> None:
            for _ in range(50):
                blocking.send(large(1 << 12))

        threads = [threading.Thread(target=flood) for _ in range(3)]
        for thread in threads:
            thread.start()

        received = [await link.receive() for _ in range(150)]

        assert all(
            isinstance(message, StepPlan) and len(message.row_slots) == 1 << 12
            for message in received
        )
        for thread in threads:
            thread.join()
        await asyncio.to_thread(blocking.close)


async def test_drained_waits_for_a_peer_that_does_not_read_and_no_longer(folder: str) -> None:
    async with listening(unique_unix_address(folder)) as (listener, links):
        far = await connect(listener.address, FAR, SECRET)
        near = await links.get()
        await near.drained()

        num_sent = 0
        # The socket and the peer's inbox take the first ones.
        while near.buffered_bytes <= socket_link.UNDRAINED_BYTES:
            near.send(large(1 << 16))
            num_sent += 1
            await asyncio.sleep(0)
        waiting = asyncio.create_task(near.drained())
        await asyncio.sleep(0)
        assert not waiting.done()

        for _ in range(num_sent):
            await far.receive()
        async with asyncio.timeout(5):
            await waiting
        assert near.buffered_bytes < socket_link.UNDRAINED_BYTES


@pytest.mark.parametrize("is_peer", [True, False])
async def test_drained_returns_when_a_link_ends(folder: str, is_peer: bool) -> None:
    async with listening(unique_unix_address(folder)) as (listener, links):
        far = await connect(listener.address, FAR, SECRET)
        near = await links.get()
        while near.buffered_bytes <= socket_link.UNDRAINED_BYTES:
            near.send(large(1 << 16))
            await asyncio.sleep(0)
        waiting = asyncio.create_task(near.drained())
        await asyncio.sleep(0)

        (far if is_peer else near).abort("for the test")
        async with asyncio.timeout(5):
            await waiting
        assert near.is_closed
