"""What `raydix stop` says of an engine on a private cluster, and whoever it leaves waiting."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from raydix.runtime.actors import engine_record
from raydix.runtime.actors.bootstrap import control_client
from raydix.runtime.actors.engine_record import EngineRecord
from raydix.runtime.cli import status
from tests.runtime.cli.scripted_l2 import ScriptedL2


class PrivateEngine:
    """Says whose cluster it is on, and ends; its owner ends the cluster, if it waits for that."""

    def __init__(self) -> None:
        waits = [sys.executable, "-c", "input()"]
        self.node = subprocess.Popen(waits, stdin=subprocess.PIPE)
        self.has_waiting_owner = True

    def call(self, method: str) -> dict[str, int] | None:
        if method == "private_cluster":
            return {"node_pid": self.node.pid, "owner_pid": 77}
        if method == "shutdown" and self.has_waiting_owner:
            self.node.kill()
        return None


@pytest.fixture
async def private(
    l2s: list[ScriptedL2], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[PrivateEngine]:
    """An engine on a private cluster, which uses the first L2."""
    engine = PrivateEngine()
    record = EngineRecord(control_address="unix:/none", client_address="unix:/none", secret=b"s")
    monkeypatch.setattr(engine_record, "find_record", lambda name: record)
    ask = control_client.call_supervisor

    async def answer(name: str, at: EngineRecord, method: str, *arguments: Any) -> Any:
        return engine.call(method) if at is record else await ask(name, at, method, *arguments)

    monkeypatch.setattr(control_client, "call_supervisor", answer)
    yield engine
    engine.node.kill()
    engine.node.communicate()


@pytest.mark.parametrize("cache", [False, True])
async def test_an_engine_is_stopped_once_its_private_cluster_has_ended(
    cache: bool, private: PrivateEngine
) -> None:
    told = "engine prod is stopped, and its private cluster and L2 with it"
    assert await status._stop("prod", cache) == told


async def test_who_owns_a_private_cluster_that_goes_on_is_told(
    private: PrivateEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "_LET_GO_S", 0.01)
    private.has_waiting_owner = False
    assert await status._stop("prod", False) == (
        "engine prod is stopped; its L2, l2-1, stays for a while, as raydix status shows; its "
        "private cluster ends with process 77, which has started it"
    )


async def test_whoever_is_interrupted_is_told_that_the_engine_goes_on_stopping(
    private: PrivateEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked, answer = asyncio.Event(), control_client.call_supervisor

    async def drain(name: str, at: EngineRecord, method: str, *arguments: Any) -> Any:
        if method != "shutdown":
            return await answer(name, at, method, *arguments)
        asked.set()
        return await asyncio.Event().wait()

    monkeypatch.setattr(control_client, "call_supervisor", drain)
    stopping = asyncio.create_task(status._stop("prod", False))
    await asked.wait()
    stopping.cancel()
    await asyncio.gather(stopping, return_exceptions=True)
    told = "engine prod goes on stopping, as raydix status shows\n"
    assert capsys.readouterr().err == told
