"""One conformance suite for streams of pages: in memory, within a host, over TCP and under TLS."""

import os
import queue
import shutil
import socket
import threading
from collections.abc import Iterator
from itertools import pairwise

import pytest

from raydix.ids import BatchId
from raydix.runtime.actors.links.tls import TlsFiles
from raydix.runtime.actors.pulls import page_stream
from raydix.runtime.actors.pulls.page_stream import PageStream
from raydix.runtime.actors.pulls.pieces import Piece
from raydix.runtime.actors.pulls.streaming import send_pages
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.storage.namespace import make_namespace
from tests.runtime.actors.links.test_tls import certified
from tests.runtime.actors.pulls.streams import (
    BY_NAME,
    BY_TCP,
    SECRET,
    WAIT_S,
    Holder,
    OpenPair,
    Reader,
    make_ends,
    make_page,
    open_by_socket,
    open_in_memory,
)
from tests.runtime.storage.stores import layout_of

_PAYLOAD = 12_000
_OK, _MISSING = ObjectStatus.OK, ObjectStatus.MISSING
_PATIENCE_S = 0.2


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    if shutil.which("openssl") is None:
        pytest.skip("needs the command openssl (apt-get install openssl)")
    return certified(tmp_path_factory.mktemp("tls") / "ours", "IP:127.0.0.1")


@pytest.fixture(params=["memory", "here", "tcp", "tls"])
def open_pair(request: pytest.FixtureRequest) -> Iterator[OpenPair]:
    """Each kind of stream."""
    if request.param == "memory":
        yield open_in_memory
        return
    tls = request.getfixturevalue("files") if request.param == "tls" else None
    with open_by_socket(tls, WAIT_S, BY_TCP if request.param == "tcp" else BY_NAME) as opened:
        yield opened


def start_sending(holder: Holder, reader: Reader, stream: PageStream) -> threading.Thread:
    thread = threading.Thread(
        target=send_pages, args=[stream, holder.leaving, reader.namespace], daemon=True
    )
    thread.start()
    return thread


def piece(
    first: int = 0,
    held: tuple[bool, ...] = (True,),
    *,
    batch: int = 1,
    group: int = 0,
    object_bytes: int = 64 + _PAYLOAD,
) -> bytes:
    return Piece(BatchId(batch), group, first, object_bytes, held).pack()


def test_pages_come_where_they_were_asked_for_and_what_is_lacking_is_told(
    open_pair: OpenPair,
) -> None:
    holder, reader = make_ends(_PAYLOAD, 40)
    sender, receiver = open_pair()
    start_sending(holder, reader, sender)
    reader.receive(receiver)

    reader.ask(1, keys=range(20), pages=range(19, -1, -1))
    holder.send(1, range(20), lacks=[3, 19])

    assert reader.statuses() == [_MISSING if key in (3, 19) else _OK for key in range(20)]
    assert holder.sent.get(timeout=WAIT_S) == 1
    for key in range(20):
        assert reader.holds(19 - key, key) == (key not in (3, 19))
    holder.leaving.end()
    reader.wait_ended()


def test_streams_share_a_batch_and_bring_each_page_once(open_pair: OpenPair) -> None:
    holder, reader = make_ends(_PAYLOAD, 400)
    for _ in range(3):
        sender, receiver = open_pair()
        start_sending(holder, reader, sender)
        reader.receive(receiver)

    for batch in range(4):
        pages = range(100 * batch, 100 * batch + 100)
        reader.ask(batch, keys=pages, pages=pages)
        holder.send(batch, pages)

    assert [reader.statuses() for _ in range(4)] == [[_OK] * 100] * 4
    assert {holder.sent.get(timeout=WAIT_S) for _ in range(4)} == {0, 1, 2, 3}
    assert all(reader.holds(page, page) for page in range(400))
    holder.leaving.end()
    reader.wait_ended()


def test_frames_may_be_cut_anywhere(open_pair: OpenPair) -> None:
    _, reader = make_ends(_PAYLOAD, 4)
    sender, receiver = open_pair()
    reader.receive(receiver)
    reader.ask(1, keys=[5, 6], pages=[0, 1])
    pages = [make_page(key, reader.namespace, _PAYLOAD) for key in (5, 6)]
    data = piece(held=(True, True)) + pages[0] + pages[1]

    cuts = [0, 1, 31, 33, 96, 97, len(data) - 1, len(data)]
    for start, end in pairwise(cuts):
        sender.send([data[start:end]])

    assert reader.statuses() == [_OK, _OK]
    assert reader.holds(0, 5)
    assert reader.holds(1, 6)
    sender.close()
    reader.wait_ended()


@pytest.mark.parametrize("num_bytes", [10, 32, 32 + 64 + 500])
def test_a_stream_that_ends_in_the_middle_settles_nothing_more(
    open_pair: OpenPair, num_bytes: int
) -> None:
    _, reader = make_ends(_PAYLOAD, 4)
    sender, receiver = open_pair()
    reader.receive(receiver)
    reader.ask(1, keys=[5], pages=[0])

    data = piece() + make_page(5, reader.namespace, _PAYLOAD)
    sender.send([data[:num_bytes]])
    sender.close()

    reader.wait_ended()
    assert reader.arriving.num_open == 1
    assert reader.done.empty()


def test_what_is_not_what_its_name_says_is_told_page_by_page(open_pair: OpenPair) -> None:
    _, reader = make_ends(_PAYLOAD, 8)
    sender, receiver = open_pair()
    reader.receive(receiver)
    reader.ask(1, keys=range(5), pages=range(5))
    other = make_namespace(b"another model", "v1", layout_of(_PAYLOAD))
    pages = [make_page(key, reader.namespace, _PAYLOAD) for key in range(5)]
    pages[1][-1] ^= 1
    pages[2] = make_page(2, reader.namespace, _PAYLOAD, claimed=7)
    pages[3] = make_page(3, other, _PAYLOAD)
    pages[4][0] ^= 1

    sender.send([piece(held=(True,) * 5), *map(bytes, pages)])

    assert reader.statuses() == [
        ObjectStatus.OK,
        ObjectStatus.BAD_CHECKSUM,
        ObjectStatus.WRONG_KEY,
        ObjectStatus.WRONG_NAMESPACE,
        ObjectStatus.BAD_MAGIC,
    ]
    sender.close()
    reader.wait_ended()


@pytest.mark.parametrize(
    "head",
    [
        piece(batch=2),
        piece(group=1),
        piece(object_bytes=64 + _PAYLOAD - 4),
        piece(first=1, held=(True, True)),
        piece(first=2**31),
        b"GET / HTTP/1.1\r\n" + bytes(16),
        piece()[:6] + bytes(2) + piece()[8:],
        piece()[:-8] + (2).to_bytes(8, "little"),
    ],
    ids=["batch", "group", "size", "too many", "far off", "another protocol", "empty", "held"],
)
def test_what_was_not_asked_for_ends_its_stream_before_a_byte_is_written(
    open_pair: OpenPair, head: bytes
) -> None:
    _, reader = make_ends(_PAYLOAD, 4)
    before = bytes(reader.arena.buffer)
    sender, receiver = open_pair()
    reader.ask(1, keys=[5, 6], pages=[0, 1])
    sender.send([head, bytes(make_page(5, reader.namespace, _PAYLOAD))])

    reader.receive(receiver)

    reader.wait_ended()
    assert bytes(reader.arena.buffer) == before
    assert reader.done.empty()


@pytest.mark.parametrize("num_asked", [1, 2])
def test_pages_that_come_again_end_their_stream_and_change_nothing(
    open_pair: OpenPair, num_asked: int
) -> None:
    """The whole batch again, once it is answered; or a page again, while others are awaited."""
    _, reader = make_ends(_PAYLOAD, 4)
    sender, receiver = open_pair()
    reader.ask(1, keys=[5, 6][:num_asked], pages=[0, 1][:num_asked])
    forged = make_page(6, reader.namespace, _PAYLOAD, claimed=5)
    first = [piece(), bytes(make_page(5, reader.namespace, _PAYLOAD))]
    sender.send([*first, piece(), bytes(forged)])

    reader.receive(receiver)

    reader.wait_ended()
    assert reader.holds(0, 5)
    assert reader.done.empty() == (num_asked == 2)


def test_a_sender_waits_for_a_slow_reader_and_keeps_its_pages(open_pair: OpenPair) -> None:
    payload = 256 << 10
    holder, reader = make_ends(payload, 128)
    sender, receiver = open_pair()
    thread = start_sending(holder, reader, sender)
    reader.ask(1, keys=range(128), pages=range(128))

    holder.send(1, range(128))

    # More than any buffer on the way takes.
    assert thread.is_alive()
    assert holder.sent.empty()
    reader.receive(receiver)
    assert reader.statuses() == [_OK] * 128
    assert holder.sent.get(timeout=WAIT_S) == 1
    holder.leaving.end()
    reader.wait_ended()


def test_a_stream_that_breaks_gives_back_what_it_had_not_sent(open_pair: OpenPair) -> None:
    payload = 256 << 10
    holder, reader = make_ends(payload, 128)
    sender, receiver = open_pair()
    thread = start_sending(holder, reader, sender)
    holder.send(1, range(128))
    holder.send(2, [1])

    receiver.close()
    receiver.release()
    thread.join(WAIT_S)
    holder.leaving.close()

    assert not thread.is_alive()
    assert {holder.sent.get(timeout=WAIT_S) for _ in range(2)} == {1, 2}
    holder.send(3, [1])
    assert holder.sent.get(timeout=WAIT_S) == 3, "nobody is there any more to be sent to"


def test_a_reader_that_takes_nothing_loses_its_stream() -> None:
    holder, reader = make_ends(256 << 10, 128)
    with open_by_socket(None, _PATIENCE_S) as opened:
        sender, _ = opened()
        thread = start_sending(holder, reader, sender)
        holder.send(1, range(128))
        thread.join(WAIT_S)
        assert not thread.is_alive()
    holder.leaving.close()
    assert holder.sent.get(timeout=WAIT_S) == 1


@pytest.mark.parametrize(("host", "family"), [(BY_NAME, socket.AF_UNIX), (BY_TCP, socket.AF_INET)])
def test_within_a_host_streams_do_without_tcp(host: str, family: socket.AddressFamily) -> None:
    with open_by_socket(None, WAIT_S, host) as opened:
        assert [family_of(end) for end in opened()] == [family, family]


def test_streams_under_tls_are_under_tls_within_a_host_too(files: TlsFiles) -> None:
    with open_by_socket(files, WAIT_S, BY_NAME) as opened:
        assert [family_of(end) for end in opened()] == [socket.AF_INET] * 2


def test_a_listener_of_another_user_is_reached_by_tcp_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(page_stream.os, "geteuid", lambda: os.getuid() + 1)
    with open_by_socket(None, WAIT_S, BY_NAME) as opened:
        assert [family_of(end) for end in opened()] == [socket.AF_INET] * 2


def test_whoever_has_taken_a_listeners_name_gets_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"\0raydix-test-{os.getpid()}".encode()
    monkeypatch.setattr(page_stream, "_name_here", lambda *_: name)
    heard: list[bytes] = []

    def answer() -> None:
        connection, _ = squatter.accept()
        connection.sendall((68).to_bytes(4, "little") + bytes(68))
        while told := connection.recv(4096):
            heard.append(told)
        connection.close()

    with socket.socket(socket.AF_UNIX) as squatter:
        squatter.bind(name)
        squatter.listen()
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with open_by_socket(None, WAIT_S, BY_NAME) as opened:
            assert [family_of(end) for end in opened()] == [socket.AF_INET] * 2
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert SECRET not in b"".join(heard)
    assert "by TCP" in caplog.text


def family_of(end: PageStream) -> int:
    return end._connection.family  # type: ignore[attr-defined,no-any-return]


def test_strangers_get_no_stream() -> None:
    with open_by_socket(None, WAIT_S) as opened:
        _, receiver = opened()
        address = receiver._connection.getpeername()  # type: ignore[attr-defined]
        stranger = socket.create_connection(address)
        greeting = stranger.recv(4096)
        assert greeting
        stranger.sendall((68).to_bytes(4, "little") + bytes(68))
        while stranger.recv(4096):
            pass
        stranger.close()


def test_pages_of_an_ended_reader_are_not_waited_for() -> None:
    holder, _ = make_ends(_PAYLOAD, 4)
    taken: queue.SimpleQueue[object] = queue.SimpleQueue()
    thread = threading.Thread(target=lambda: taken.put(holder.leaving.take()), daemon=True)
    thread.start()

    holder.leaving.end()

    assert taken.get(timeout=WAIT_S) is None
