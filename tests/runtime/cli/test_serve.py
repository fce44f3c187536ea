"""What ends `raydix serve`, and what it says."""

import asyncio
import os
import signal
from collections.abc import Callable

import pytest

from raydix.runtime.actors.bootstrap import cluster as cluster_module
from raydix.runtime.cli import serve
from raydix.runtime.cli.stop_signal import until_stopped
from raydix.runtime.config.loading import load_config
from tests.runtime.api.fake_engine import FakeCluster


@pytest.fixture
def fate(monkeypatch: pytest.MonkeyPatch, cluster: FakeCluster) -> list[Callable[[], None]]:
    """What happens once the engine is ready; to be set by the test."""
    happenings: list[Callable[[], None]] = []

    async def until_fate(ended: object) -> None:
        asyncio.get_running_loop().call_soon(happenings[0])
        await until_stopped(ended)

    monkeypatch.setattr(serve, "until_stopped", until_fate)
    return happenings


def test_an_engine_that_gives_up_ends_serve_with_one_line_that_says_why(
    run: Callable[..., int],
    cluster: FakeCluster,
    checkpoint: str,
    fate: list[Callable[[], None]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    fate.append(cluster.handle.end.set)
    assert run("serve", checkpoint) == 1
    printed = capsys.readouterr()
    assert printed.err == "EngineDead: engine has given up: for a reason\n"
    assert "is ready" in printed.out
    assert cluster.handle.is_shut_down


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_drains_the_engine_for_as_long_as_asked(
    run: Callable[..., int],
    cluster: FakeCluster,
    checkpoint: str,
    fate: list[Callable[[], None]],
    number: signal.Signals,
) -> None:
    fate.append(lambda: os.kill(os.getpid(), number))
    assert run("serve", checkpoint, "--drain-s", "42") == 0
    assert cluster.supervisions[0].drain_timeout_s == 42.0
    assert cluster.handle.is_shut_down


def test_metrics_have_one_port_unless_told_otherwise(
    checkpoint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = {7000, 9477}
    monkeypatch.setattr(cluster_module, "is_free_port", lambda port: port not in taken)
    monkeypatch.setattr(cluster_module, "named_cluster", lambda address: address)
    config = load_config(checkpoint)
    named = load_config(checkpoint, {"ray": {"metrics_port": 7000}})

    assert serve.with_metrics_port(named, None).ray.metrics_port == 7000
    assert serve.with_metrics_port(config, "10.0.0.1:6379").ray.metrics_port is None
    assert serve.with_metrics_port(config, None).ray.metrics_port is None
    assert "Port 9477 is taken" in capsys.readouterr().out
    taken.clear()
    assert serve.with_metrics_port(config, None).ray.metrics_port == 9477


async def test_who_waits_no_longer_leaves_no_handler_of_signals() -> None:
    async def end() -> None:
        raise ValueError("over")

    with pytest.raises(ValueError, match="over"):
        await until_stopped(end())
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
