"""What `raydix status` says of L2s, and which of them `raydix stop` ends."""

import asyncio
import json
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from raydix.errors import BadRequest, ConfigError, EngineDead
from raydix.runtime.actors import engine_record, l2_record
from raydix.runtime.actors.bootstrap import control_client
from raydix.runtime.actors.engine_record import EngineName, EngineRecord
from raydix.runtime.actors.l2_record import L2Name, L2Record, find_l2
from raydix.runtime.actors.links import socket_link
from raydix.runtime.actors.links.frames import frame
from raydix.runtime.actors.links.handshake import GREETING, NONCE_BYTES
from raydix.runtime.actors.lock_file import LockFile
from raydix.runtime.actors.service.rows import load_row
from raydix.runtime.actors.service.running import running_services
from raydix.runtime.actors.supervision.control_calls import Call
from raydix.runtime.actors.supervision.control_desk import ControlDesk
from raydix.runtime.cli import status
from tests.runtime.cli.scripted_l2 import ScriptedL2

Capture = pytest.CaptureFixture[str]


async def test_an_l2_that_ends_before_it_has_answered_is_ended(
    l2s: list[ScriptedL2], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def end(record: L2Record, method: str) -> bool:
        raise EngineDead("the peer closed the link")

    monkeypatch.setattr(control_client, "call_l2", end)
    [_, unused] = l2_record.l2s_of()
    with pytest.raises(EngineDead, match="closed the link"):
        await status._end_l2(unused, patience_s=0.0)
    monkeypatch.setattr(l2_record, "l2s_of", list)
    assert await status._end_l2(unused, patience_s=0.0) == "l2-2 is ended"


async def test_status_tells_who_uses_each_l2_and_how_long_it_stays(l2s: list[ScriptedL2]) -> None:
    engines, found = await status._look()
    assert engines == []
    assert [(each["name"], each["engines"], each["ends_in_s"]) for each in found] == [
        ("l2-1", ["prod"], None),
        ("l2-2", [], 60.0),
    ]


async def test_l2_that_nobody_uses_is_ended_by_its_name(l2s: list[ScriptedL2]) -> None:
    assert await status._stop("l2-2", cache=False) == "l2-2 is ended"
    assert [each.is_ended for each in l2s] == [False, True]


async def test_l2_that_is_used_is_not_ended(l2s: list[ScriptedL2]) -> None:
    with pytest.raises(BadRequest, match="l2-1 is used by prod"):
        await status._stop("l2-1", cache=False)
    assert not l2s[0].is_ended


async def test_unknown_names_are_told_with_those_that_there_are(l2s: list[ScriptedL2]) -> None:
    with pytest.raises(
        EngineDead, match=r"nobody is no engine, service or L2 .*There are: l2-1, l2-2"
    ):
        await status._stop("nobody", cache=False)


async def test_l2_of_a_stopped_engine_goes_on_where_others_use_it(
    l2s: list[ScriptedL2], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = EngineRecord(control_address="unix:/none", client_address="unix:/none", secret=b"s")
    monkeypatch.setattr(engine_record, "find_record", lambda name: record)
    ask, stopped = control_client.call_supervisor, []

    async def answer(name: str, at: EngineRecord, method: str, *arguments: Any) -> Any:
        if at is not record:
            return await ask(name, at, method, *arguments)
        return stopped.append(name) if method == "shutdown" else None

    monkeypatch.setattr(control_client, "call_supervisor", answer)
    l2s[0].engines.append("prod-2")
    told = "engine prod is stopped; its L2, l2-1, goes on, as prod-2 uses it"
    assert await status._stop("prod", cache=True) == told
    assert stopped == ["prod"]

    l2s[0].engines.clear()
    assert "l2-1" not in await status._stop("prod", cache=True)
    l2s[0].engines.append("prod")
    assert "its L2, l2-1, stays for a while" in await status._stop("prod", cache=False)
    l2s[1].engines.append("prod")
    assert "its L2s, l2-1 and l2-2, stay for a while" in await status._stop("prod", cache=False)


async def test_l2_of_a_stopped_service_ends_with_it_where_that_is_asked(
    l2s: list[ScriptedL2], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = EngineRecord(control_address="unix:/none", client_address="unix:/none", secret=b"s")
    monkeypatch.setattr(engine_record, "find_record", lambda name: record)
    ask = control_client.call_supervisor

    async def answer(name: str, at: EngineRecord, method: str, *arguments: Any) -> Any:
        if at is not record:
            return await ask(name, at, method, *arguments)
        if method == "shutdown":
            l2s[0].engines.remove("prod/1")

    monkeypatch.setattr(control_client, "call_supervisor", answer)
    l2s[0].engines[:] = ["prod/1", "other/1"]
    assert "goes on, as other/1 uses it" in await status._stop("prod", cache=True)
    l2s[0].engines[:] = ["prod/1"]
    assert "l2-1 is ended" in await status._stop("prod", cache=True)


async def test_l2_that_speaks_otherwise_is_listed_with_what_is_wrong(
    l2s: list[ScriptedL2], tmp_path: Path, run: Callable[..., int], capsys: Capture
) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeting = GREETING[:-1] + bytes([GREETING[-1] ^ 1])
        writer.write(frame(greeting + bytes(NONCE_BYTES)))

    path = f"{tmp_path}/other.sock"
    name = L2Name(tmp_path / "node-l2-3.l2")
    name.publish(
        L2Record(name="l2-3", actor="a", pid=7, control_address=f"unix:{path}", secret=b"s")
    )
    async with await asyncio.start_unix_server(greet, path):
        _, found = await status._look()
        assert await asyncio.to_thread(run, "status") == 0
    name.release()

    assert [each["name"] for each in found] == ["l2-1", "l2-2", "l2-3"]
    assert [each["problem"] for each in found[:2]] == [None, None]
    assert "is of another version of Raydix" in found[2]["problem"]
    assert "end its process 7" in found[2]["problem"]
    out = " ".join(capsys.readouterr().out.split())
    assert "l2-1" in out
    assert "l2-3 is there and does not answer: " in out


async def test_records_of_other_checkouts_break_nothing(
    l2s: list[ScriptedL2], tmp_path: Path
) -> None:
    values = {"name": "l2-3", "actor": "a", "pid": 7, "control_address": "unix:/none"}
    told_more = LockFile(str(tmp_path / "node-l2-3.l2"))
    told_more.write(json.dumps({**values, "secret": "00", "port": 1}).encode())
    told_less = LockFile(str(tmp_path / "node-l2-4.l2"))
    told_less.write(json.dumps({"name": "l2-4"}).encode())

    _, found = await status._look()

    assert [each["name"] for each in found] == ["l2-1", "l2-2", "l2-3"]
    with pytest.raises(ConfigError, match=r"cannot read .*Stop it by the raydix that made it"):
        find_l2(tmp_path / "node-l2-4.l2")
    told_more.remove()
    told_less.remove()


async def test_an_engine_that_speaks_otherwise_is_told_apart_from_one_that_starts(
    l2s: list[ScriptedL2], tmp_path: Path, run: Callable[..., int], capsys: Capture
) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeting = GREETING[:-1] + bytes([GREETING[-1] ^ 1])
        writer.write(frame(greeting + bytes(NONCE_BYTES)))

    path = f"{tmp_path}/other.sock"
    names = [EngineName("old"), EngineName("starting")]
    names[0].publish(
        EngineRecord(control_address=f"unix:{path}", client_address="unix:/none", secret=b"s")
    )
    async with await asyncio.start_unix_server(greet, path):
        engines, _ = await status._look()
        assert await asyncio.to_thread(run, "status") == 0
    for name in names:
        name.release()

    assert [(each["name"], each["problem"] is None) for each in engines] == [
        ("old", False),
        ("starting", True),
    ]
    told = " ".join(capsys.readouterr().out.split())
    assert "old does not answer this raydix" in told
    assert "starting starts or ends" in told
    assert "old: the Supervisor of engine old refuses this client" in told


async def test_an_engine_whose_process_is_stopped_is_said_to_be_silent_and_not_to_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (engine_record, l2_record):
        monkeypatch.setattr(module, "user_folder", lambda: tmp_path)
    monkeypatch.setattr(socket_link, "HANDSHAKE_S", 0.01)
    address = f"unix:{tmp_path}/stopped.sock"
    name = EngineName("stopped")
    name.publish(EngineRecord(control_address=address, client_address="unix:/none", secret=b"s"))
    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(address.removeprefix("unix:"))
        stopped.listen()
        [engine], _ = await status._look()
    name.release()

    assert "the Supervisor of engine stopped does not answer" in engine["problem"]
    assert "refuses" not in engine["problem"]


async def test_l2_that_has_ended_meanwhile_is_not_listed(
    l2s: list[ScriptedL2], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = L2Name(tmp_path / "node-l2-3.l2")
    address = f"unix:{tmp_path}/gone.sock"
    name.publish(L2Record(name="l2-3", actor="a", pid=7, control_address=address, secret=b"s"))
    describe = status._describe

    async def describe_and_end(record: L2Record) -> dict[str, Any]:
        described = await describe(record)
        name.release()
        return described

    monkeypatch.setattr(status, "_describe", describe_and_end)
    _, found = await status._look()
    assert [each["name"] for each in found] == ["l2-1", "l2-2"]


async def test_a_service_is_told_with_its_engines_and_their_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., int], capsys: Capture
) -> None:
    monkeypatch.setattr(engine_record, "user_folder", lambda: tmp_path)
    described = {
        "service": "prod",
        "wanted": 2,
        "is_giving_way": False,
        "engines": [
            {
                "name": "prod/7",
                "node": "f3a1",
                "role": "prefill",
                "state": "serves",
                "address": "10.0.0.3",
                "version": "0.1.0",
                "fingerprint": None,
                "up_s": 3.0,
                **load_row(None),
            }
        ],
        "waiting": [{"engines": 1, "for": "a node that has none of them"}],
    }
    record = EngineRecord(
        control_address=f"unix:{tmp_path}/c.sock", client_address="unix:none", secret=b"s"
    )
    calls = {"look_at_service": Call(lambda: described)}
    desk = ControlDesk("prod", record, calls, lambda: None)
    await desk.open()
    assert await running_services() == {"prod": described}
    engines, _ = await status._look()
    assert engines == [], "one that has come since services were looked for is no engine either"
    own = EngineName("prod/7")
    own.publish(replace(record, control_address="unix:/none"))
    assert await asyncio.to_thread(run, "status") == 0, "a service is not asked as an engine is"
    own.release()
    assert capsys.readouterr().out.count("prod/7") == 1, "an engine of a service is in its table"
    await desk.close()
    assert await running_services() == {}

    console = Console(width=200, record=True)
    status._print_service(console, described)
    told = console.export_text()
    assert "service prod: 2 engines wanted; it goes on" in told
    assert "prod/7  10.0.0.3 (f3a1)  prefill  serves" in told
    assert "1 more wait for a node that has none of them." in told
    status._print_service(console, described | {"wanted": 1})
    assert "service prod: 1 engine wanted; it goes on" in console.export_text()
