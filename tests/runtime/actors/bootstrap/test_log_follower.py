"""The log of an engine in the process that started it, over real sockets."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from raydix.runtime.actors import engine_record
from raydix.runtime.actors.bootstrap.log_follower import LogFollower
from raydix.runtime.actors.engine_record import EngineRecord
from raydix.runtime.actors.log_sender import LogSender
from raydix.runtime.actors.supervision.control_calls import Call, CallKind
from raydix.runtime.actors.supervision.control_desk import ControlDesk
from raydix.runtime.actors.supervision.log_desk import LogDesk
from raydix.runtime.actors.supervision.log_feed import MAX_LINES
from raydix.runtime.messages.log_line import LogLine
from tests.runtime.actors.links.link_ends import short_folder


class Engine:
    """The desks of a Supervisor."""

    def __init__(self, folder: str) -> None:
        self.record = EngineRecord(
            control_address=f"unix:{folder}/control.sock",
            client_address=f"unix:{folder}/clients.sock",
            secret=b"s" * 32,
        )
        self.log = LogDesk(folder)
        calls = {"next_lines": Call(self.log.feed.next_lines, CallKind.WAITS)}
        self.desk = ControlDesk("mine", self.record, calls, lambda: None)

    async def end(self) -> None:
        await self.desk.close()
        await self.log.close()


@pytest.fixture
async def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Engine]:
    monkeypatch.setattr(engine_record, "_ROOT", tmp_path)
    with short_folder() as folder:
        made = Engine(folder)
        await made.desk.open()
        made.log.open()
        yield made
        await made.end()


def record(text: str, level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord("raydix.x", level, "x.py", 1, text, (), None)


async def until_told(caplog: pytest.LogCaptureFixture, text: str) -> None:
    async with asyncio.timeout(10):
        while text not in caplog.messages:
            await asyncio.sleep(0.001)


async def test_lines_of_one_of_several_engines_name_it_and_its_node(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    follower = LogFollower("mine", engine.record, node="10.0.0.3")
    sender = LogSender(engine.log.path, "gpu0")
    sender.handle(record("weights read"))
    await until_told(caplog, "weights read")
    sender.disconnect()
    follower.finish()
    [line] = [LogLine.of(each, "serve") for each in caplog.records if "read" in each.message]
    assert (line.engine, line.node, line.actor) == ("mine", "10.0.0.3", "serve")
    assert caplog.records[-1].__dict__["actor"] == "gpu0"


async def test_lines_of_actors_are_logged_here_with_their_level_and_actor(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    follower = LogFollower("mine", engine.record)
    sender = LogSender(engine.log.path, "gpu0")
    sender.handle(record("weights read"))
    await until_told(caplog, "weights read")
    sender.handle(record("it is slow", logging.WARNING))
    sender.disconnect()
    await until_told(caplog, "it is slow")

    await engine.end()
    await asyncio.to_thread(follower.finish)
    told = [(each.levelname, each.__dict__["actor"], each.name) for each in caplog.records]
    assert told == [("INFO", "gpu0", "raydix.x"), ("WARNING", "gpu0", "raydix.x")]


async def test_a_supervisor_that_does_not_answer_for_a_while_is_heard_again(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    follower = LogFollower("mine", engine.record)
    sender = LogSender(engine.log.path, "gpu0")
    sender.handle(record("before"))
    await until_told(caplog, "before")

    await engine.desk.close()
    sender.handle(record("meanwhile"))
    # For longer than a dialer goes on trying.
    await asyncio.sleep(1.0)
    await engine.desk.open()
    await until_told(caplog, "meanwhile")
    sender.disconnect()
    assert caplog.messages == ["before", "meanwhile"]

    await engine.end()
    await asyncio.to_thread(follower.finish)


async def test_lines_that_nobody_fetched_in_time_are_counted(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    sender = LogSender(engine.log.path, "gpu0")
    for i in range(MAX_LINES + 5):
        sender.handle(record(f"line {i}", logging.WARNING))
        # The kernel holds fewer than these.
        if i % 50 == 0:
            await engine.log.feed.next_lines(i)
    await engine.log.feed.next_lines(MAX_LINES + 4)
    sender.disconnect()

    LogFollower("mine", engine.record)
    await until_told(caplog, f"line {MAX_LINES + 4}")
    assert (
        caplog.messages[0]
        == "5 lines of the log of engine mine were dropped, as they came too fast"
    )
    assert caplog.messages[1:] == [f"line {i}" for i in range(5, MAX_LINES + 5)]
