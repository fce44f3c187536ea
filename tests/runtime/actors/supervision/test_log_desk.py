"""The log on its way from an actor's process to whoever fetches it."""

import asyncio
import logging
import logging.config
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from raydix.runtime.actors import log_sender
from raydix.runtime.actors.log_sender import LogSender, send_log
from raydix.runtime.actors.supervision.log_desk import LogDesk
from raydix.runtime.actors.supervision.log_feed import MAX_LINES, LatestLines
from raydix.runtime.messages.log_line import LogLine


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("raydix.x", logging.INFO, "x.py", 1, text, (), None)


def lines_of(answer: dict[str, Any]) -> list[LogLine]:
    return [LogLine.from_values(values) for values in answer["lines"]]


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[LogDesk]:
    desk = LogDesk(str(tmp_path))
    desk.open()
    yield desk
    await desk.close()


async def test_lines_of_all_actors_come_together_and_are_waited_for(desk: LogDesk) -> None:
    fetching = asyncio.create_task(desk.feed.next_lines(0))
    await asyncio.sleep(0)
    senders = [LogSender(desk.path, name) for name in ("gpu0", "host")]
    for sender in senders:
        sender.handle(record("hello"))
        sender.disconnect()

    answer = await fetching
    found = lines_of(answer)
    while len(found) < 2:
        found += lines_of(await desk.feed.next_lines(len(found)))
    assert answer["first"] == 0
    assert {line.actor: line.text for line in found} == {"gpu0": "hello", "host": "hello"}


async def test_the_last_words_of_a_process_arrive(desk: LogDesk) -> None:
    # The loop has not even accepted the connection yet.
    sender = LogSender(desk.path, "gpu0")
    sender.handle(record("cannot go on"))
    sender.disconnect()
    (line,) = lines_of(await desk.feed.next_lines(0))
    assert line.text == "cannot go on"


async def test_whoever_sets_logging_up_anew_does_not_cut_a_sender_off(desk: LogDesk) -> None:
    sender = LogSender(desk.path, "gpu0")
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": False})
    sender.handle(record("still here"))
    sender.disconnect()
    (line,) = lines_of(await desk.feed.next_lines(0))
    assert line.text == "still here"


async def test_bytes_that_are_no_line_end_nothing(desk: LogDesk) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(desk.path)
        stranger.send(b"\x01")
        stranger.send(LogLine.of(record("good"), "gpu0").encode())
        (line,) = lines_of(await desk.feed.next_lines(0))
    assert line.text == "good"


async def test_a_flood_of_lines_leaves_the_loop_to_others(desk: LogDesk) -> None:
    sender = LogSender(desk.path, "gpu0")
    num_sent = 150
    for i in range(num_sent):
        sender.handle(record(f"line {i}"))
    lines = lines_of(await desk.feed.next_lines(0))
    sender.disconnect()
    assert 0 < len(lines) < num_sent


async def test_a_text_that_cannot_be_made_ends_nobody(
    desk: LogDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    sender = LogSender(desk.path, "gpu0")
    wrong = logging.LogRecord("raydix.x", logging.INFO, "x.py", 1, "%d pages", ("no",), None)
    sender.handle(wrong)
    sender.handle(record("good"))
    sender.disconnect()
    (line,) = lines_of(await desk.feed.next_lines(0))
    assert line.text == "good"


async def test_a_sender_drops_and_counts_what_nobody_takes(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "logs.sock"))
        listener.listen()
        sender = LogSender(str(tmp_path / "logs.sock"), "gpu0")
        num_sent = 10_000
        for i in range(num_sent):
            sender.handle(record(f"line {i}"))

        connection, _ = listener.accept()
        with connection:
            connection.setblocking(False)
            taken = drained(connection)
            assert 0 < len(taken) < num_sent
            sender.handle(record("after"))
            loss, last = drained(connection)
        sender.disconnect()

    num_dropped = num_sent - len(taken)
    assert loss.text == f"{num_dropped} lines of the log were dropped, as they came too fast"
    assert loss.level == logging.WARNING
    assert last.text == "after"


def drained(connection: socket.socket) -> list[LogLine]:
    lines = []
    while True:
        try:
            lines.append(LogLine.decode(connection.recv(1 << 18)))
        except BlockingIOError:
            return lines


def test_the_latest_lines_are_bounded_and_what_is_gone_is_told() -> None:
    lines = LatestLines(max_lines=3)
    assert lines.since(0, 10) == (0, [])
    for i in range(5):
        lines.add(LogLine.of(record(str(i)), "gpu0"))

    first, found = lines.since(0, 10)
    assert (first, [line.text for line in found]) == (2, ["2", "3", "4"])
    first, found = lines.since(3, 1)
    assert (first, [line.text for line in found]) == (3, ["3"])
    assert lines.since(5, 10) == (5, [])
    assert MAX_LINES > 1000


async def test_process_of_several_engines_tells_each_once_and_none_that_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_sender, "LOGGERS", ("raydix.shared",))
    own = logging.getLogger("raydix.shared")
    desks = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        desks.append(LogDesk(str(tmp_path / name)))
        desks[-1].open()
    one, other = desks
    for desk in (one, one, other):
        send_log(desk.path, "host")

    own.info("hello")
    own.info("again")
    for desk in desks:
        found: list[LogLine] = []
        while len(found) < 2:
            found += lines_of(await desk.feed.next_lines(len(found)))
        assert [line.text for line in found] == ["hello", "again"]

    await one.close()
    own.info("nobody hears this there")
    send_log(other.path, "host")
    assert [sender.path for sender in own.handlers if isinstance(sender, LogSender)] == [other.path]
    for sender in tuple(own.handlers):
        own.removeHandler(sender)
    await other.close()
