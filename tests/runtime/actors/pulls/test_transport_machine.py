"""Streams of a link in any order, cut anywhere, damaged, replayed and broken: what is told holds.

One holder, one reader and two streams without threads or sockets, against a model that knows which
bytes each page of the reader must have.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from raydix.ids import BatchId, ConnectionId, HostPageId
from raydix.runtime.actors.pulls import pieces
from raydix.runtime.actors.pulls.arriving import ArrivingPages, PageInflow
from raydix.runtime.actors.pulls.leaving import LeavingPages, LeavingPiece
from raydix.runtime.actors.pulls.pieces import PeerMisbehaves
from raydix.runtime.cache.host.events import SendPages
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.host import ObjectsDone, ObjectStatus, ReadObjects
from raydix.runtime.messages.pulls import PullPages
from raydix.runtime.storage.namespace import make_namespace
from raydix.runtime.storage.worker.object_header import verify_objects
from raydix.runtime.tiers.host_arena import HostArena
from tests.runtime.storage.stores import content, layout_of, make_key

_PAYLOAD = 64
_NUM_PAGES = 24
_NUM_STREAMS = 2
_LAYOUT = layout_of(_PAYLOAD)
_NAMESPACE = make_namespace(b"model", "v1", _LAYOUT)
_OK = ObjectStatus.OK


@dataclass(slots=True, eq=False)
class Stream:
    """What is on its way, and how far its reader has come."""

    inflow: PageInflow
    wire: bytearray = field(default_factory=bytearray)
    in_hand: LeavingPiece | None = None
    """The piece that is being given to the socket."""


@dataclass(slots=True)
class Batch:
    """What the model knows of a batch that is not answered."""

    keys: list[int]
    pages: list[int]
    lacks: set[int]


class TransportMachine(RuleBasedStateMachine):
    """What two nodes may do with one link after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.holder, self.reader = (
            HostArena.create(_LAYOUT, _NUM_PAGES * _LAYOUT.host_page_bytes(0)) for _ in range(2)
        )
        for page in range(_NUM_PAGES):
            self.holder.payload(HostPageId(page), 0)[:] = content(page, _PAYLOAD)
        self.next_batch = 0
        self.told: dict[int, bytes] = {}
        """What each page of the reader holds that was told to be OK."""
        self.open_link()

    def open_link(self) -> None:
        self.batches: dict[int, Batch] = {}
        self.pinned: set[int] = set()
        self.leaving = LeavingPages(self.holder, self.on_sent)
        self.arriving = ArrivingPages(self.reader, self.on_done)
        self.streams = [Stream(PageInflow(self.arriving)) for _ in range(_NUM_STREAMS)]
        self.past: list[bytes] = []
        self.is_clean = True

    def teardown(self) -> None:
        self.holder.close()
        self.reader.close()

    def on_sent(self, batch_id: BatchId) -> None:
        assert batch_id in self.pinned, "a pin ends once"
        in_hand = [stream.in_hand for stream in self.streams if stream.in_hand is not None]
        assert all(each.piece.batch_id != batch_id for each in in_hand), "it is still being read"
        self.pinned.discard(batch_id)

    def on_done(self, done: ObjectsDone) -> None:
        batch = self.batches.pop(done.batch_id)
        assert len(done.statuses) == len(batch.keys)
        for key, page, status in zip(batch.keys, batch.pages, done.statuses, strict=True):
            if status == _OK:
                assert bytes(self.reader.payload(HostPageId(page), 0)) == content(key, _PAYLOAD)
                assert key not in batch.lacks
                self.told[page] = bytes(self.reader.page(HostPageId(page), 0))
            elif self.is_clean:
                assert status == ObjectStatus.MISSING
                assert key in batch.lacks

    @property
    def free_pages(self) -> list[int]:
        taken = {page for batch in self.batches.values() for page in batch.pages}
        return [page for page in range(_NUM_PAGES) if page not in taken]

    @precondition(lambda self: len(self.free_pages) >= 4)
    @rule(
        keys=st.lists(st.integers(0, _NUM_PAGES - 1), min_size=1, max_size=4, unique=True),
        lacks=st.sets(st.integers(0, _NUM_PAGES - 1), max_size=4),
    )
    def ask(self, keys: list[int], lacks: set[int]) -> None:
        number, self.next_batch = self.next_batch, self.next_batch + 1
        pages = self.free_pages[-len(keys) :]
        packed = b"".join(map(make_key, keys))
        for page in pages:
            self.told.pop(page, None)
        self.batches[number] = Batch(keys, pages, lacks)
        self.pinned.add(number)
        batch_id = BatchId(number)
        self.arriving.ask(
            ReadObjects(batch_id=batch_id, keys=packed, host_page_ids=int32_array(pages))
        )
        self.leaving.ask(PullPages(batch_id=batch_id, keys=packed))
        found = tuple(None if key in lacks else HostPageId(key) for key in keys)
        self.leaving.send(SendPages(ConnectionId(1), batch_id, found))

    @property
    def has_waiting(self) -> bool:
        return any(sending.waiting for sending in self.leaving._sending.values())

    @rule(
        index=st.integers(0, _NUM_STREAMS - 1),
        num_steps=st.integers(1, 9),
        damaged_at=st.one_of(st.none(), st.integers(0, 300)),
    )
    def go_on(self, index: int, num_steps: int, damaged_at: int | None) -> None:
        """Do what a stream does by itself: begin a piece, bring it, end it."""
        for step in range(num_steps):
            self.begin_piece(index)
            if damaged_at is not None and step == 0:
                self.damage(index, damaged_at)
            self.deliver(index, 2000)
            self.end_piece(index)

    @rule(index=st.integers(0, _NUM_STREAMS - 1))
    def begin_piece(self, index: int) -> None:
        stream = self.streams[index]
        if stream.in_hand is None and self.has_waiting:
            stream.in_hand = self.leaving.take()
            assert stream.in_hand is not None
            data = b"".join(stream.in_hand.buffers(_NAMESPACE))
            stream.wire += data
            self.past.append(data)

    @rule(index=st.integers(0, _NUM_STREAMS - 1))
    def end_piece(self, index: int) -> None:
        stream = self.streams[index]
        if stream.in_hand is not None:
            piece, stream.in_hand = stream.in_hand, None
            self.leaving.finish(piece)

    @rule(
        index=st.integers(0, _NUM_STREAMS - 1),
        num_bytes=st.sampled_from([1, 31, 33, 100, 1000]),
    )
    def deliver(self, index: int, num_bytes: int) -> None:
        stream = self.streams[index]
        while num_bytes and stream.wire:
            rest = stream.inflow.rest
            length = min(num_bytes, len(rest), len(stream.wire))
            rest[:length] = stream.wire[:length]
            del stream.wire[:length]
            num_bytes -= length
            try:
                page = stream.inflow.take(length)
            except PeerMisbehaves:
                assert not self.is_clean, "an honest peer is believed"
                self.break_link()
                return
            if page is not None:
                [status] = verify_objects([page.ref], [_OK], _NAMESPACE)
                self.arriving.settle(page, status)

    @rule(index=st.integers(0, _NUM_STREAMS - 1), at=st.integers(0, 400))
    def damage(self, index: int, at: int) -> None:
        wire = self.streams[index].wire
        if at < len(wire):
            wire[at] ^= 0x40
            self.is_clean = False

    @precondition(lambda self: self.past)
    @rule(index=st.integers(0, _NUM_STREAMS - 1), age=st.integers(1, 3))
    def replay(self, index: int, age: int) -> None:
        if age <= len(self.past):
            self.streams[index].wire += self.past[-age]
            self.is_clean = False

    @rule(chance=st.integers(0, 9))
    def break_now_and_then(self, chance: int) -> None:
        if chance == 0:
            self.break_link()

    def break_link(self) -> None:
        for stream in self.streams:
            stream.in_hand = None
        self.leaving.close()
        assert not self.pinned, "no pin outlives its link"
        self.open_link()

    @invariant()
    def what_was_told_is_there(self) -> None:
        for page, told in self.told.items():
            assert bytes(self.reader.page(HostPageId(page), 0)) == told


def run_machine(max_examples: int = 120) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # A page or two a piece, so that a batch has several.
        patch.setattr(pieces, "_PIECE_BYTES", 2 * (64 + _PAYLOAD))
        run_state_machine_as_test(
            TransportMachine,
            settings=settings(
                max_examples=max_examples,
                stateful_step_count=40,
                phases=[Phase.generate],
                report_multiple_bugs=False,
            ),
        )


def test_whatever_happens_to_streams_no_page_is_told_that_is_not_there() -> None:
    run_machine()


def replays_are_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that have come are taken again."""
    claim = ArrivingPages.claim

    def claim_again(self: ArrivingPages, piece: pieces.Piece) -> Any:
        pages = claim(self, piece)
        if (pull := self._pulls.get(piece.batch_id)) is not None:
            pull.is_claimed = [False] * len(pull.is_claimed)
        return pages

    monkeypatch.setattr(ArrivingPages, "claim", claim_again)


def answers_come_before_the_last_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is answered when its last page begins to come."""
    claim = ArrivingPages.claim

    def claim_and_settle(self: ArrivingPages, piece: pieces.Piece) -> Any:
        pages = claim(self, piece)
        for page in pages:
            self.settle(page, _OK)
        return pages

    monkeypatch.setattr(ArrivingPages, "claim", claim_and_settle)


def checksums_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages count as right whatever they hold."""
    monkeypatch.setattr(
        "tests.runtime.actors.pulls.test_transport_machine.verify_objects",
        lambda refs, statuses, _: statuses,
    )


def pins_end_with_the_first_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch counts as sent while other pieces of it are still on their way."""
    finish = LeavingPages.finish

    def finish_early(self: LeavingPages, leaving: LeavingPiece) -> None:
        sending = self._sending.get(leaving.piece.batch_id)
        if sending is not None:
            sending.num_open = 1
            finish(self, leaving)

    monkeypatch.setattr(LeavingPages, "finish", finish_early)


def pins_outlive_their_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not sent when a link broke stays pinned."""
    monkeypatch.setattr(LeavingPages, "close", LeavingPages.end)


@pytest.mark.parametrize(
    "mutate",
    [
        replays_are_believed,
        answers_come_before_the_last_page,
        checksums_are_not_compared,
        pins_end_with_the_first_piece,
        pins_outlive_their_link,
    ],
)
def test_a_fault_of_the_transport_is_found(
    mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)

    with pytest.raises((AssertionError, KeyError)):
        run_machine(max_examples=2000)
