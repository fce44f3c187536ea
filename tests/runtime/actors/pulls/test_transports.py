"""One conformance suite for what carries pages: streams that send them, and reads of leased ones.

Leased pages are read by a fake, or by NIXL where it is installed: each end in a process of its own.
"""

import importlib.util
import queue
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from raydix.errors import AccountingError
from raydix.ids import HostPageId
from raydix.runtime.actors.arena_users import ArenaUsers
from raydix.runtime.actors.pulls import leasing
from raydix.runtime.actors.pulls import leaving as leaving_module
from raydix.runtime.actors.pulls.carriers import Carrier, LeaseCarrier, TcpCarrier
from raydix.runtime.actors.pulls.leasing import ReadFailed, RemoteRead, RemoteReads, lease_pages
from raydix.runtime.actors.pulls.nixl_process import NixlProcess
from raydix.runtime.actors.pulls.page_stream import PageStream
from raydix.runtime.actors.pulls.streaming import send_pages
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.storage.backend import ObjectRef
from raydix.runtime.storage.namespace import Namespace
from raydix.runtime.tiers.host_arena import HostArena
from tests.runtime.actors.pulls.streams import (
    WAIT_S,
    Holder,
    OpenPair,
    Reader,
    make_ends,
    open_by_socket,
)

_PAYLOAD = 12_000
_NUM_STREAMS = 3
_OK, _MISSING = ObjectStatus.OK, ObjectStatus.MISSING
needs_nixl = pytest.mark.skipif(
    importlib.util.find_spec("nixl") is None, reason="needs NIXL (pip install 'raydix[nixl]')"
)


class FakeReads:
    """`RemoteReads` of an arena in the same process; `during` is called within each read."""

    def __init__(
        self, remote: HostArena, own: HostArena, during: Callable[[], None] = lambda: None
    ) -> None:
        self._remote, self._own, self._during = remote, own, during

    def read(self, reads: Sequence[RemoteRead]) -> None:
        for each in reads:
            half = each.num_bytes // 2
            self._copy(each, 0, half)
            self._during()
            self._copy(each, half, each.num_bytes)

    def _copy(self, read: RemoteRead, start: int, end: int) -> None:
        source = self._remote.buffer[read.offset + start : read.offset + end]
        self._own.buffer[read.local_offset + start : read.local_offset + end] = source


class Transport:
    """Two nodes, and what carries pages from the one to the other."""

    def __init__(self, kind: str, holder: Holder, reader: Reader, open_pair: OpenPair) -> None:
        self.holder, self.reader, self.kind = holder, reader, kind
        self._open_pair = open_pair
        self._served: NixlProcess | None = None
        self.senders: list[threading.Thread] = []
        self.receivers: list[tuple[threading.Thread, PageStream]] = []
        self.carrier: Carrier
        match kind:
            case "tcp":
                self.carrier = TcpCarrier(reader.namespace)
            case "fake":
                reads = FakeReads(holder.arena, reader.arena)
                self.carrier = LeaseCarrier([reads] * _NUM_STREAMS, reader.namespace)
            case _:
                self._served = NixlProcess(holder.arena.location, ArenaUsers(holder.arena.users))
                self.carrier = LeaseCarrier.open(
                    reader.arena.location,
                    ArenaUsers(reader.arena.users),
                    self._served.access,
                    reader.namespace,
                    _NUM_STREAMS,
                )

    def start(self, num_streams: int = _NUM_STREAMS) -> None:
        """Let pages flow."""
        serve = send_pages if self.kind == "tcp" else lease_pages
        for number in range(num_streams):
            sending, receiving = self._open_pair()
            arguments = [sending, self.holder.leaving, self.reader.namespace]
            self.senders.append(self._run(serve, *arguments))
            receive = self._run(self.carrier.receive, number, receiving, self.reader.arriving)
            self.receivers.append((receive, receiving))

    def _run(self, function: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        thread.start()
        return thread

    def end_reader(self) -> None:
        """The reader ends its link."""
        for _, stream in self.receivers:
            stream.close()
        self.carrier.close()
        self.join(thread for thread, _ in self.receivers)

    def join(self, threads: Iterator[threading.Thread] | Sequence[threading.Thread]) -> None:
        for thread in threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()

    def kill_served(self) -> None:
        """The other node's arena cannot be read any more."""
        assert self._served is not None
        self._served.close()

    def close(self) -> None:
        self.holder.leaving.end()
        self.end_reader()
        self.join(self.senders)
        self.holder.leaving.close()
        if self._served is not None:
            self._served.close()


Make = Callable[[int, int], Transport]


@pytest.fixture(params=["tcp", "fake", pytest.param("nixl", marks=needs_nixl)])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes two nodes with so many bytes a page and so many pages, over each transport."""
    made: list[Transport] = []
    with open_by_socket(None, WAIT_S) as open_pair:

        def make_transport(payload_bytes: int, num_pages: int) -> Transport:
            holder, reader = make_ends(payload_bytes, num_pages)
            made.append(Transport(request.param, holder, reader, open_pair))
            return made[-1]

        yield make_transport
        for each in made:
            each.close()


def test_pages_come_where_they_were_asked_for_and_what_is_lacking_is_told(make: Make) -> None:
    each = make(_PAYLOAD, 40)
    each.start()

    each.reader.ask(1, keys=range(20), pages=range(19, -1, -1))
    each.holder.send(1, range(20), lacks=[3, 19])

    assert each.reader.statuses() == [_MISSING if key in (3, 19) else _OK for key in range(20)]
    assert each.holder.sent.get(timeout=WAIT_S) == 1
    for key in range(20):
        assert each.reader.holds(19 - key, key) == (key not in (3, 19))


def test_a_batch_of_which_nothing_is_held_is_answered_and_given_back(make: Make) -> None:
    each = make(_PAYLOAD, 8)
    each.start()

    each.reader.ask(1, keys=[1, 2], pages=[1, 2])
    each.holder.send(1, [1, 2], lacks=[1, 2])

    assert each.reader.statuses() == [_MISSING] * 2
    assert each.holder.sent.get(timeout=WAIT_S) == 1


def test_streams_share_batches_and_bring_each_page_once(make: Make) -> None:
    each = make(_PAYLOAD, 400)
    each.start()

    for batch in range(4):
        pages = range(100 * batch, 100 * batch + 100)
        each.reader.ask(batch, keys=pages, pages=pages)
        each.holder.send(batch, pages)

    assert [each.reader.statuses() for _ in range(4)] == [[_OK] * 100] * 4
    assert {each.holder.sent.get(timeout=WAIT_S) for _ in range(4)} == {0, 1, 2, 3}
    assert all(each.reader.holds(page, page) for page in range(400))


def test_large_pages_come_whole(make: Make) -> None:
    each = make(3 << 20, 6)
    each.start()

    each.reader.ask(1, keys=range(6), pages=range(6))
    each.holder.send(1, range(6))

    assert each.reader.statuses() == [_OK] * 6
    assert all(each.reader.holds(page, page) for page in range(6))


def test_what_was_overwritten_on_its_way_is_told_page_by_page(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = make(_PAYLOAD, 8)
    arena = each.holder.arena

    def spoil(fill: Callable[..., None]) -> Callable[[Sequence[ObjectRef], Namespace], None]:
        def fill_and_spoil(refs: Sequence[ObjectRef], namespace: Namespace) -> None:
            fill(refs, namespace)
            arena.payload(HostPageId(1), 0)[-1] ^= 1
            # Another page has taken its place, whole.
            arena.page(HostPageId(2), 0)[:] = arena.page(HostPageId(4), 0)
            arena.page(HostPageId(3), 0)[0] ^= 1

        return fill_and_spoil

    for module in (leaving_module, leasing):
        monkeypatch.setattr(module, "fill_headers", spoil(module.fill_headers))
    each.start(num_streams=1)

    each.reader.ask(1, keys=range(5), pages=range(5))
    each.holder.send(1, range(5))

    assert each.reader.statuses() == [
        ObjectStatus.OK,
        ObjectStatus.BAD_CHECKSUM,
        ObjectStatus.WRONG_KEY,
        ObjectStatus.BAD_MAGIC,
        ObjectStatus.OK,
    ]
    assert each.holder.sent.get(timeout=WAIT_S) == 1


def test_a_link_that_ends_gives_back_all_pins_and_settles_nothing_more(make: Make) -> None:
    each = make(256 << 10, 128)
    each.start()
    for batch in range(3):
        each.reader.ask(batch, keys=range(128), pages=range(128))
        each.holder.send(batch, range(128))
    each.reader.statuses()

    each.end_reader()
    num_answered = 1 + each.reader.done.qsize()
    each.join(each.senders)
    each.holder.leaving.close()

    assert {each.holder.sent.get(timeout=WAIT_S) for _ in range(3)} == {0, 1, 2}
    assert each.holder.sent.empty()
    assert num_answered + each.reader.arriving.num_open == 3
    assert each.carrier.failure is None, "a link that ends says nothing against what carried it"


def test_a_batch_that_is_asked_for_twice_is_an_error(make: Make) -> None:
    each = make(_PAYLOAD, 8)
    each.reader.ask(1, keys=[1], pages=[1])
    with pytest.raises(AccountingError):
        each.reader.ask(1, keys=[1], pages=[2])


class _Gate:
    """A read that stops in the middle of each page until it is let go."""

    def __init__(self) -> None:
        self.entered: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.let_go: queue.SimpleQueue[None] = queue.SimpleQueue()

    def __call__(self) -> None:
        self.entered.put(None)
        self.let_go.get(timeout=WAIT_S)


def test_a_lease_lasts_until_the_read_has_ended_and_a_page_is_told_only_then() -> None:
    holder, reader = make_ends(_PAYLOAD, 4)
    gate = _Gate()
    with open_by_socket(None, WAIT_S) as open_pair:
        each = Transport("fake", holder, reader, open_pair)
        each.carrier = LeaseCarrier([FakeReads(holder.arena, reader.arena, gate)], reader.namespace)
        each.start(num_streams=1)
        reader.ask(1, keys=[2], pages=[0])
        holder.send(1, [2])

        gate.entered.get(timeout=WAIT_S)
        assert holder.sent.empty()
        assert reader.done.empty()
        gate.let_go.put(None)

        assert reader.statuses() == [_OK]
        assert holder.sent.get(timeout=WAIT_S) == 1
        each.close()


class _FailingReads:
    """Reads some pages, then none."""

    def __init__(self, reads: RemoteReads, num_good: int) -> None:
        self._reads, self._num_good = reads, num_good

    def read(self, reads: Sequence[RemoteRead]) -> None:
        self._num_good -= 1
        if self._num_good < 0:
            raise ReadFailed("the wire is cut")
        self._reads.read(reads)


def test_a_read_that_fails_ends_its_stream_and_says_why_and_what_came_before_stays() -> None:
    holder, reader = make_ends(_PAYLOAD, 4)
    with open_by_socket(None, WAIT_S) as open_pair:
        each = Transport("fake", holder, reader, open_pair)
        reads = _FailingReads(FakeReads(holder.arena, reader.arena), num_good=1)
        each.carrier = LeaseCarrier([reads], reader.namespace)
        each.start(num_streams=1)
        for batch in (1, 2):
            reader.ask(batch, keys=[batch], pages=[batch])
            holder.send(batch, [batch])

        assert reader.statuses() == [_OK]
        each.join([thread for thread, _ in each.receivers])
        each.join(each.senders)
        holder.leaving.close()

        assert each.carrier.failure == "the wire is cut"
        assert reader.holds(1, 1)
        assert reader.done.empty()
        assert {holder.sent.get(timeout=WAIT_S) for _ in range(2)} == {1, 2}
        each.close()


def test_a_reader_that_says_it_has_read_another_piece_loses_its_stream() -> None:
    holder, reader = make_ends(_PAYLOAD, 4)
    with open_by_socket(None, WAIT_S) as open_pair:
        sending, receiving = open_pair()
        thread = threading.Thread(
            target=lease_pages, args=[sending, holder.leaving, reader.namespace], daemon=True
        )
        thread.start()
        holder.send(1, [2])
        receiving.send([leasing._READ.pack(2, 0)])
        thread.join(WAIT_S)
        assert not thread.is_alive()
        assert holder.sent.empty(), "its pages are given back with the link"


@needs_nixl
def test_nixl_that_cannot_read_an_arena_any_more_fails_reads_and_nothing_else() -> None:
    holder, reader = make_ends(_PAYLOAD, 64)
    with open_by_socket(None, WAIT_S) as open_pair:
        each = Transport("nixl", holder, reader, open_pair)
        each.start()
        reader.ask(1, keys=range(8), pages=range(8))
        holder.send(1, range(8))
        assert reader.statuses() == [_OK] * 8

        each.kill_served()
        reader.ask(2, keys=range(8, 16), pages=range(8, 16))
        holder.send(2, range(8, 16))

        thread, _ = each.receivers[0]
        each.join([thread for thread, _ in each.receivers if not thread.is_alive()])
        while each.carrier.failure is None and any(t.is_alive() for t, _ in each.receivers):
            thread.join(0.01)
        assert each.carrier.failure is not None
        assert reader.done.empty()
        assert all(reader.holds(page, page) for page in range(8))
        each.close()
