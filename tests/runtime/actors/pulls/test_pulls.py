"""Links between two nodes: who is let in, what each is told, and how they end."""

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from raydix.errors import ConfigError
from raydix.ids import BatchId
from raydix.runtime.actors.links.address import TcpAddress
from raydix.runtime.actors.links.link import LinkClosed, LinkRefused
from raydix.runtime.actors.links.socket_dialer import connect
from raydix.runtime.actors.links.socket_link import SocketLink
from raydix.runtime.actors.links.tls import TlsFiles
from raydix.runtime.actors.pulls import puller as puller_module
from raydix.runtime.actors.pulls.page_stream import PageStream, StreamEnded, dial_stream
from raydix.runtime.actors.pulls.pull_settings import PeerRecord
from raydix.runtime.cache.host.events import (
    FromPeer,
    FromReader,
    PagesSent,
    PeerAttached,
    PeerLost,
    ReaderAttached,
    ReaderLost,
)
from raydix.runtime.messages.codec import Message
from raydix.runtime.messages.hello import Hello, Role
from raydix.runtime.messages.host import AskExists, CopiesDrained, ObjectsDone, ObjectStatus
from raydix.runtime.messages.mirror import MirrorUpdate
from raydix.runtime.messages.pulls import OpenStreams, PullPages, TellKeys
from tests.runtime.actors.links.test_tls import certified
from tests.runtime.actors.pulls.nodes import WAIT_S, Wire, two_shells
from tests.runtime.storage.stores import make_key

OK, MISSING = ObjectStatus.OK, ObjectStatus.MISSING
ME = Hello(role=Role.HOST_MEMORY, name="me", incarnation=1, pid=1)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    if shutil.which("openssl") is None:
        pytest.skip("needs the command openssl (apt-get install openssl)")
    return certified(tmp_path_factory.mktemp("tls") / "ours", "IP:127.0.0.1")


@pytest.mark.parametrize("is_secured", [False, True], ids=["plain", "tls"])
async def test_pages_are_pulled_and_pins_end(
    is_secured: bool, request: pytest.FixtureRequest
) -> None:
    tls = request.getfixturevalue("files") if is_secured else None
    async with two_shells(files=tls) as (holder, puller, record):
        holder.lacks = {2, 17}
        puller.pulls.follow([record])
        assert (await puller.wait_for(PeerAttached)).name == "holder"

        puller.pull(1, range(20))

        assert await puller.statuses(1) == [MISSING if i in (2, 17) else OK for i in range(20)]
        assert [page for page in range(20) if not puller.holds(page)] == [2, 17]
        reader = (await holder.wait_for(ReaderAttached)).connection
        assert await holder.wait_for(PagesSent) == PagesSent(reader, BatchId(1))


async def test_questions_answers_and_keys_go_over_the_link() -> None:
    async with two_shells() as (holder, puller, record):
        puller.pulls.follow([record])
        peer = (await puller.wait_for(PeerAttached)).connection
        reader = (await holder.wait_for(ReaderAttached)).connection
        question = AskExists(batch_id=BatchId(1), keys=make_key(1))
        answer = ObjectsDone(batch_id=BatchId(1), statuses=b"\0")
        update = MirrorUpdate(ready=bytes(32))

        puller.links.send(peer, question)
        puller.links.send(peer, TellKeys())
        await holder.wait_for(FromReader, 2)
        holder.links.send(reader, update)
        holder.links.send(reader, answer)
        await puller.wait_for(FromPeer, 2)

        assert holder.of(FromReader) == [
            FromReader(reader, question),
            FromReader(reader, TellKeys()),
        ]
        assert puller.of(FromPeer) == [FromPeer(peer, update), FromPeer(peer, answer)]


async def test_a_node_pulls_neither_from_itself_nor_pages_of_another_namespace() -> None:
    async with two_shells() as (_, puller, record):
        own = await puller.pulls.open(TcpAddress("127.0.0.1", 0))
        stranger = replace(record, name="stranger", namespace=b"another!")

        puller.pulls.follow([own, stranger, record])

        await puller.wait_for(PeerAttached)
        assert list(puller.pulls._pullers) == [record]


async def test_a_node_that_is_not_found_is_left_once_its_link_has_ended() -> None:
    async with two_shells() as (holder, puller, record):
        puller.pulls.follow([record])
        await puller.wait_for(PeerAttached)
        puller.pulls.follow([])
        puller.pull(1, [3])
        assert await puller.statuses(1) == [OK], "who does not answer now may yet send"

        await holder.pulls.close()
        await puller.wait_for(PeerLost)
        puller.pulls.follow([])

        assert not puller.pulls._pullers


async def test_a_port_that_is_taken_is_told_with_the_key_to_change() -> None:
    async with two_shells() as (_, puller, record):
        with pytest.raises(ConfigError, match=r"Set .* cache\.l2\.pull\.port to a free port"):
            await puller.pulls.open(TcpAddress(record.host, record.port))


async def test_no_secret_stands_in_what_may_be_logged() -> None:
    async with two_shells() as (_, _, record):
        assert str(record.secret) not in repr(record)
        assert record.secret.hex() not in repr(record)


async def dialled(record: PeerRecord, hello: Hello = ME) -> tuple[SocketLink, OpenStreams]:
    """A link as a reader has it, with its first message."""
    link = await connect(f"tcp:{record.host}:{record.port}", hello, record.secret)
    opening = await link.receive()
    assert isinstance(opening, OpenStreams)
    return link, opening


async def ended(link: SocketLink) -> None:
    async with asyncio.timeout(WAIT_S):
        await link.lost
    with pytest.raises(LinkClosed):
        link.send(TellKeys())


async def test_whoever_does_not_know_the_secret_gets_neither_link_nor_stream() -> None:
    async with two_shells() as (holder, _, record):
        with pytest.raises(LinkRefused):
            await connect(f"tcp:{record.host}:{record.port}", ME, b"a guess")
        link, opening = await dialled(record)
        hello = replace(ME, role=Role.PAGE_STREAM, ticket=opening.ticket)
        address = TcpAddress(record.host, opening.port)
        with pytest.raises(LinkRefused):
            await asyncio.to_thread(dial_stream, address, hello, b"a guess", None)
        link.close()
        await holder.wait_for(ReaderLost)
        assert len(holder.of(ReaderAttached)) == 1


async def test_why_a_node_refuses_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dialled_thrice = asyncio.Event()
    num_dialled = 0

    async def refuse(*_: Any, **__: Any) -> SocketLink:
        nonlocal num_dialled
        num_dialled += 1
        if num_dialled == 3:
            dialled_thrice.set()
        raise LinkRefused("another build")

    monkeypatch.setattr(puller_module, "connect", refuse)
    monkeypatch.setattr(puller_module, "_FIRST_RETRY_S", 0.0)
    async with two_shells() as (_, puller, record):
        puller.pulls.follow([record])
        async with asyncio.timeout(WAIT_S):
            await dialled_thrice.wait()
    assert [each.message for each in caplog.records if each.levelname == "WARNING"] == [
        "holder lets nobody pull: another build"
    ]


@pytest.mark.parametrize("role", [Role.CLIENT, Role.STORAGE, Role.PAGE_STREAM])
async def test_whoever_is_no_host_memory_gets_no_link(role: Role) -> None:
    async with two_shells() as (holder, _, record):
        link = await connect(
            f"tcp:{record.host}:{record.port}", replace(ME, role=role), record.secret
        )
        await ended(link)
        assert not holder.events


async def is_refused(record: PeerRecord, port: int, hello: Hello) -> bool:
    """Whether a stream with this hello ends at once."""

    def try_stream() -> bool:
        stream = dial_stream(TcpAddress(record.host, port), hello, record.secret, None)
        try:
            return stream.receive_into(memoryview(bytearray(1))) == 0
        except StreamEnded:
            return True
        finally:
            stream.close()
            stream.release()

    return await asyncio.to_thread(try_stream)


async def test_streams_of_no_link_or_of_one_that_has_ended_are_refused() -> None:
    async with two_shells() as (holder, _, record):
        link, opening = await dialled(record)
        hello = replace(ME, role=Role.PAGE_STREAM, ticket=opening.ticket)
        assert await is_refused(record, opening.port, replace(hello, ticket=bytes(16)))
        assert await is_refused(record, opening.port, replace(hello, ticket=None))
        assert await is_refused(record, opening.port, replace(hello, role=Role.HOST_MEMORY))

        link.close()
        await holder.wait_for(ReaderLost)

        assert await is_refused(record, opening.port, hello)


@pytest.mark.parametrize(
    "said",
    [
        [CopiesDrained()],
        [PullPages(batch_id=BatchId(1), keys=make_key(1), group=7)],
        [PullPages(batch_id=BatchId(1), keys=b"short")],
        [PullPages(batch_id=BatchId(1), keys=make_key(1))] * 2,
    ],
    ids=["another's message", "group", "keys", "batch id twice"],
)
async def test_a_reader_that_says_what_it_may_not_loses_its_link(said: list[Message]) -> None:
    async with two_shells() as (holder, puller, record):
        puller.pulls.follow([record])
        await puller.wait_for(PeerAttached)
        link, _ = await dialled(record)

        for message in said:
            link.send(message)

        await ended(link)
        reader = holder.of(ReaderAttached)[-1].connection
        assert await holder.wait_for(ReaderLost) == ReaderLost(reader)
        puller.pull(1, [3])
        assert await puller.statuses(1) == [OK], "another's link goes on"


async def test_pins_of_a_reader_that_has_gone_end_whatever_it_has_asked_for() -> None:
    async with two_shells() as (holder, _, record):
        holder.answers_pulls = False
        link, _ = await dialled(record)
        link.send(PullPages(batch_id=BatchId(1), keys=make_key(1)))
        link.send(PullPages(batch_id=BatchId(2), keys=make_key(2)))
        asked = await holder.wait_for(FromReader, 2)
        holder.send(asked.connection, PullPages(batch_id=BatchId(1), keys=make_key(1)))
        link.close()
        await holder.wait_for(PagesSent)
        holder.send(asked.connection, PullPages(batch_id=BatchId(2), keys=make_key(2)))

        await holder.wait_for(PagesSent, 2)

        assert {event.batch_id for event in holder.of(PagesSent)} == {1, 2}


@pytest.fixture
async def wire(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Wire]:
    """What streams of pages are dialled through; nobody listens behind it yet."""
    wire = Wire()
    port = await wire.open()

    def dial(address: TcpAddress, *arguments: Any) -> PageStream:
        wire.leads_to(address)
        return dial_stream(TcpAddress(address.host, port), *arguments)

    monkeypatch.setattr(puller_module, "dial_stream", dial)
    yield wire
    await wire.close()


async def test_a_peer_that_dies_in_the_middle_answers_nothing_and_writes_no_more(
    wire: Wire,
) -> None:
    async with two_shells(64 << 10) as (holder, puller, record):
        puller.pulls.follow([record])
        await puller.wait_for(PeerAttached)
        wire.hold()
        puller.pull(1, range(200))
        await wire.wait_held()

        await holder.pulls.close()
        wire.cut()

        await puller.wait_for(PeerLost)
        assert not puller.answers(1)
        assert all(thread.name != "pull" for thread in threading.enumerate())
        # Those that had come by then are whole.
        assert not all(puller.holds(page) for page in range(200))


async def test_a_reader_that_asks_and_opens_no_stream_loses_its_link_and_its_pins() -> None:
    async with two_shells(patience_s=0.2) as (holder, _, record):
        link, _ = await dialled(record)
        link.send(PullPages(batch_id=BatchId(1), keys=make_key(1)))

        await ended(link)

        await holder.wait_for(ReaderLost)
        assert (await holder.wait_for(PagesSent)).batch_id == 1


async def test_a_peer_that_owes_pages_and_sends_nothing_loses_its_link() -> None:
    async with two_shells(patience_s=0.2) as (holder, puller, record):
        holder.answers_pulls = False
        puller.pulls.follow([record])
        await puller.wait_for(PeerAttached)

        puller.pull(1, [3])

        await puller.wait_for(PeerLost)
        holder.answers_pulls = True
        await puller.pull_again(2, [3])
        assert puller.holds(3)


async def test_a_partition_that_heals_costs_nothing(wire: Wire) -> None:
    async with two_shells(64 << 10) as (_, puller, record):
        puller.pulls.follow([record])
        await puller.wait_for(PeerAttached)
        wire.hold()
        puller.pull(1, range(200))
        await wire.wait_held()

        wire.let_go()

        assert await puller.statuses(1) == [OK] * 200
        assert not puller.of(PeerLost)


async def test_a_partition_that_lasts_ends_the_link_which_comes_again(wire: Wire) -> None:
    async with two_shells(64 << 10, patience_s=2.0) as (holder, puller, record):
        puller.pulls.follow([record])
        await puller.wait_for(PeerAttached)
        wire.hold()
        puller.pull(1, range(200))

        await puller.wait_for(PeerLost)
        await holder.wait_for(PagesSent)
        wire.let_go()

        # Links that were dialled meanwhile may have ended, too.
        await puller.pull_again(2, range(40))
        assert all(puller.holds(page) for page in range(40))


async def test_links_that_flap_lose_what_was_under_way_and_no_more(wire: Wire) -> None:
    async with two_shells(64 << 10) as (holder, puller, record):
        puller.pulls.follow([record])
        for number in range(1, 6):
            await puller.wait_for(PeerAttached, number)
            puller.pull(number, range(200))
            wire.cut()
            await puller.wait_for(PeerLost, number)
        await puller.wait_for(PeerAttached, 6)

        puller.pull(6, range(200))

        assert await puller.statuses(6) == [OK] * 200
        assert all(puller.holds(page) for page in range(200))
        await holder.wait_for(ReaderLost, 5)
