import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from raydix.runtime.actors import engine_record, l2_record
from raydix.runtime.actors.l2_record import L2Name, L2Record
from raydix.runtime.actors.links.socket_listener import listen
from raydix.runtime.actors.supervision.control_calls import Call, ControlCalls
from raydix.runtime.cli import main as cli
from raydix.runtime.messages.hello import Hello, Role
from tests.hollow_checkpoint import make_hollow
from tests.runtime.api.fake_engine import FakeCluster
from tests.runtime.api.small_tokenizers import byte_level_backend
from tests.runtime.cli.scripted_l2 import ScriptedL2


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs `raydix ARGUMENTS`; its exit status."""

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["raydix", *arguments])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return int(caught.value.code or 0)

    return run


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a tokenizer, which an engine that is a script takes for a checkpoint."""
    folder: Path = tmp_path_factory.mktemp("checkpoint")
    byte_level_backend().save_pretrained(folder)
    return str(make_hollow(folder))


@pytest.fixture
def cluster(checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """Engines that are scripts, behind the real client."""
    cluster = FakeCluster(checkpoint)
    cluster.install(monkeypatch)
    return cluster


@pytest.fixture
async def l2s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[ScriptedL2]]:
    """Two L2s of this host, of which one is used."""
    for module in (engine_record, l2_record):
        monkeypatch.setattr(module, "user_folder", lambda: tmp_path)
    scripted, opened = [ScriptedL2("l2-1", ["prod"]), ScriptedL2("l2-2")], []
    for each in scripted:
        address = f"unix:{tmp_path}/{each.name}.sock"
        calls = ControlCalls({"describe": Call(each.describe), "end": Call(each.end)})
        own = Hello(role=Role.HOST_MEMORY, name=each.name, incarnation=1, pid=os.getpid())
        name = L2Name(tmp_path / f"node-{each.name}.l2")
        name.publish(
            L2Record(name=each.name, actor="a", pid=1, control_address=address, secret=b"s")
        )
        opened.append((name, await listen(address, own, b"s", calls.serve)))
    yield scripted
    for name, listener in opened:
        name.release()
        await listener.close()
