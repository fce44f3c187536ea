"""`raydix logs`: the lines of a service, over real sockets, whoever has its name."""

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from raydix.errors import EngineDead
from raydix.runtime.actors import engine_record
from raydix.runtime.actors.bootstrap.log_follower import deliver
from raydix.runtime.actors.engine_record import EngineRecord
from raydix.runtime.actors.log_format import format_json, format_text
from raydix.runtime.actors.service.service_log import keeping_log
from raydix.runtime.actors.supervision.control_calls import Call, CallKind
from raydix.runtime.actors.supervision.control_desk import ControlDesk
from raydix.runtime.actors.supervision.log_feed import MAX_LINES, LogFeed
from raydix.runtime.cli import logs
from raydix.runtime.messages.log_line import LogLine
from tests.runtime.actors.links.link_ends import short_folder

Capture = pytest.CaptureFixture[str]


class Owner:
    """A process that has the name `prod`, as far as its log is concerned."""

    def __init__(self, folder: str, secret: bytes) -> None:
        self.feed = LogFeed()
        address = f"unix:{folder}/{secret.decode()}.sock"
        record = EngineRecord(control_address=address, client_address=address, secret=secret)
        calls = {
            "lines_since": Call(self.feed.lines_since),
            "next_lines": Call(self.feed.next_lines, CallKind.WAITS),
        }
        self.desk = ControlDesk("prod", record, calls, lambda: None)


@pytest.fixture
async def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    monkeypatch.setattr(engine_record, "_ROOT", tmp_path)
    monkeypatch.setattr(logs, "_RETRY_S", 0.01)
    monkeypatch.setattr(logs, "_NEXT_S", 0.2)
    with short_folder() as short:
        yield short


def line(text: str, engine: str = "prod/1") -> LogLine:
    own = {"time_s": 1.0, "level": logging.INFO, "actor": "gpu0", "logger": "raydix.x"}
    return LogLine(**own, text=text, engine=engine, node="10.0.0.3")  # type: ignore[arg-type]


async def until_shown(capsys: Capture, text: str) -> str:
    """All that was printed up to this text, once it is there."""
    shown = ""
    async with asyncio.timeout(60):
        while text not in (shown := shown + capsys.readouterr().out):
            await asyncio.sleep(0.005)
    return shown


async def test_the_lines_that_there_are_are_shown_with_engine_and_node(
    folder: str, capsys: Capture
) -> None:
    owner = Owner(folder, b"a" * 32)
    await owner.desk.open()
    for number in range(450):
        owner.feed.add(line(f"line {number}", f"prod/{number % 2}"))
    await logs._show("prod", False, format_text)
    await owner.desk.close()

    shown = capsys.readouterr().out.splitlines()
    assert [each.split()[-1] for each in shown] == [str(number) for number in range(450)]
    assert "prod/0@10.0.0.3 gpu0" in shown[0]
    assert "prod/1@10.0.0.3 gpu0" in shown[1]


async def test_lines_that_come_are_followed_and_the_later_version_after_the_first_one(
    folder: str, capsys: Capture
) -> None:
    first, later = Owner(folder, b"a" * 32), Owner(folder, b"b" * 32)
    await first.desk.open()
    following = asyncio.create_task(logs._show("prod", True, format_json))
    first.feed.add(line("one"))
    await until_shown(capsys, "one")
    first.feed.add(line("two"))
    shown = await until_shown(capsys, "two")
    assert json.loads(shown)["engine"] == "prod/1"

    await first.desk.close()
    await later.desk.open()
    later.feed.add(line("three", "prod/2"))
    shown = await until_shown(capsys, "three")
    assert [json.loads(each)["message"] for each in shown.splitlines()] == ["three"]

    await later.desk.close()
    await asyncio.wait_for(following, 60)
    assert "prod has ended" in capsys.readouterr().err


async def test_lines_that_are_gone_are_told(folder: str, capsys: Capture) -> None:
    owner = Owner(folder, b"a" * 32)
    await owner.desk.open()
    owner.feed.add(line("first"))
    following = asyncio.create_task(logs._show("prod", True, format_text))
    await until_shown(capsys, "first")
    for number in range(MAX_LINES + 7):
        owner.feed.add(line(f"line {number}"))
    told = ""
    async with asyncio.timeout(60):
        while "lines are gone" not in told:
            told += capsys.readouterr().err
            await asyncio.sleep(0.005)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await owner.desk.close()
    assert told.startswith("7 lines are gone")


async def test_unknown_names_are_refused_with_those_that_there_are(folder: str) -> None:
    owner = Owner(folder, b"a" * 32)
    await owner.desk.open()
    with pytest.raises(EngineDead, match=r"nobody is neither .*There are: prod\."):
        await logs._show("nobody", False, format_text)
    await owner.desk.close()


async def test_the_log_of_a_service_has_the_lines_of_its_engines_and_of_its_owner() -> None:
    feed = LogFeed()
    logging.getLogger("raydix").setLevel(logging.INFO)
    with keeping_log(feed):
        logging.getLogger("raydix.service").info("engine prod/1 starts")
        follower = threading.Thread(target=deliver, args=(line("weights read"),))
        follower.start()
        follower.join()
        logging.getLogger("raydix.service").debug("of no interest")
    logging.getLogger("raydix.service").info("after the end")
    await feed.next_lines(1)

    kept = [(each.engine, each.actor, each.text) for each in feed.latest]
    assert kept == [
        (None, "serve", "engine prod/1 starts"),
        ("prod/1", "gpu0", "weights read"),
    ]
    logging.getLogger("raydix").setLevel(logging.NOTSET)
