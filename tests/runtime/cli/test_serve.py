"""What ends `raydix serve`, and what it says."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from raydix.errors import EngineStopped
from raydix.runtime.actors.bootstrap import cluster as cluster_module
from raydix.runtime.actors.bootstrap.start_control import StartControl
from raydix.runtime.cli import serve
from raydix.runtime.cli.stop_signal import (
    StopsTooSlowly,
    deferring_signals,
    unless_stopped,
    until_stopped,
)
from raydix.runtime.config.engine import EngineConfig
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


def test_what_is_no_name_is_refused_before_anything_starts(
    run: Callable[..., int], cluster: FakeCluster, checkpoint: str, capsys: pytest.CaptureFixture
) -> None:
    for more in ([], ["--nodes", "2"]):
        assert run("serve", checkpoint, "--name", "bad name/1", *more) == 1
        told = capsys.readouterr().err
        assert "--name is 'bad name/1'; expected up to 100 letters, digits, '.', '_' and" in told


def test_of_several_configurations_the_wrong_one_is_named(
    run: Callable[..., int], checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    half = tmp_path / "half.yaml"
    half.write_text("cache: {l1: {num_pages: 256}}")
    assert run("serve", checkpoint, str(half), "--nodes", "1") == 1
    assert f"{half}: model is missing" in " ".join(capsys.readouterr().err.split())
    assert run("serve", str(half)) == 1
    assert capsys.readouterr().err.startswith("ConfigError: model is missing")


def test_models_of_one_name_have_others_without_http_too(
    run: Callable[..., int], checkpoint: str, capsys: pytest.CaptureFixture
) -> None:
    names = ("--model-name", "a", "--model-name", "b", "--address", "127.0.0.1:1")
    assert run("serve", checkpoint, checkpoint, *names) == 1
    assert "no Ray cluster answers at 127.0.0.1:1" in capsys.readouterr().err
    assert run("serve", checkpoint, "--nodes", "1", *names[:2]) == 1
    assert "are for HTTP. Add --http HOST:PORT" in " ".join(capsys.readouterr().err.split())


def test_an_engine_that_was_stopped_ends_serve_without_an_error(
    run: Callable[..., int],
    cluster: FakeCluster,
    checkpoint: str,
    fate: list[Callable[[], None]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster.handle.reason = EngineStopped("engine raydix was shut down")
    fate.append(cluster.handle.end.set)
    assert run("serve", checkpoint) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "engine raydix was shut down" in printed.out


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
    assert ("drain",) in cluster.handle.calls
    assert cluster.handle.is_shut_down


def test_it_is_told_what_clients_elsewhere_dial(
    run: Callable[..., int],
    cluster: FakeCluster,
    checkpoint: str,
    fate: list[Callable[[], None]],
    *,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu7")
    fate.append(lambda: os.kill(os.getpid(), signal.SIGINT))
    cluster.handle.listens_at = "[::]:8901"
    assert run("serve", checkpoint, "--name", "my.engine") == 0
    assert "is ready: raydix generate --connect my.engine " in caplog.text
    assert "clients elsewhere: raydix generate --connect my.engine@gpu7:8901 " in caplog.text


def own_port(monkeypatch: pytest.MonkeyPatch) -> int:
    """Instead of the one that an engine beside these tests may have."""
    port = 20_000 + os.getpid() % 20_000
    monkeypatch.setattr(serve, "METRICS_PORT", port)
    return port


def test_metrics_have_one_port_unless_told_otherwise(
    checkpoint: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    port = own_port(monkeypatch)
    taken = {7000, port}
    monkeypatch.setattr(cluster_module, "is_free_port", lambda port: port not in taken)
    monkeypatch.setattr(cluster_module, "named_cluster", lambda address: address)
    config = load_config(checkpoint)
    named = load_config(checkpoint, {"ray": {"metrics_port": 7000}})

    def port_of(config: EngineConfig, address: str | None = None) -> int | None:
        with serve.having_metrics_port(config, address) as having:
            return having.ray.metrics_port

    assert port_of(named) == 7000
    assert port_of(config, "10.0.0.1:6379") is None
    assert port_of(config) is None
    assert f"port {port} is taken" in caplog.text
    taken.clear()
    assert port_of(config) == port


def test_of_two_that_start_at_once_one_has_the_port(
    checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither listens there yet."""
    monkeypatch.setattr(cluster_module, "is_free_port", lambda port: True)
    monkeypatch.setattr(cluster_module, "named_cluster", lambda address: None)
    config = load_config(checkpoint)

    port = own_port(monkeypatch)

    having = [serve.having_metrics_port(config, None) for _ in range(3)]
    with having[0] as first, having[1] as second:
        assert (first.ray.metrics_port, second.ray.metrics_port) == (port, None)
    with having[2] as next_one:
        assert next_one.ray.metrics_port == port


def test_one_engine_leaves_nothing_to_choose(
    run: Callable[..., int], checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("serve", checkpoint, "--routing", "session") == 1
    assert "--routing chooses among several engines. Add --nodes N" in capsys.readouterr().err


async def test_who_waits_no_longer_leaves_no_handler_of_signals() -> None:
    async def end() -> None:
        raise ValueError("over")

    with pytest.raises(ValueError, match="over"):
        await until_stopped(end())
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


async def test_a_signal_cancels_what_is_under_way_and_waits_for_its_end() -> None:
    told: list[str] = []

    async def start() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            told.append("undone")

    assert await unless_stopped(start(), 10.0, on_stop=lambda: told.append("stopping")) is None
    assert told == ["stopping", "undone"]


async def test_who_does_not_end_when_cancelled_is_not_waited_for() -> None:
    may_end = asyncio.Event()

    async def start() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        while not may_end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await may_end.wait()

    with pytest.raises(StopsTooSlowly):
        await unless_stopped(start(), 0.01, on_stop=lambda: None)
    may_end.set()


async def test_who_waits_is_cancelled_and_calls_off_what_is_under_way() -> None:
    told: list[str] = []

    async def start() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            told.append("undone")

    # As Ctrl-C does that comes before this has handlers of its own.
    waiting = asyncio.create_task(
        unless_stopped(start(), 10.0, on_stop=lambda: told.append("stopping"))
    )
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert told == ["stopping", "undone"]


def test_sigterm_during_an_import_is_taken_after_it() -> None:
    taken: list[str] = []
    former = signal.signal(signal.SIGTERM, lambda *_: taken.append("SIGTERM"))
    try:
        with deferring_signals():
            signal.raise_signal(signal.SIGTERM)
            taken.append("the end of the import")
    finally:
        signal.signal(signal.SIGTERM, former)
    assert taken == ["the end of the import", "SIGTERM"]


async def test_a_ctrl_c_that_asyncio_has_noted_before_ends_what_is_under_way() -> None:
    may_end = asyncio.Event()

    async def start() -> None:
        while not may_end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await may_end.wait()

    async def stopped_early(patience_s: float) -> None:
        # What asyncio's own handler does, while this task imports modules.
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await unless_stopped(start(), patience_s, on_stop=lambda: None)

    try:
        with pytest.raises(StopsTooSlowly):
            await asyncio.create_task(stopped_early(0.01))
    finally:
        may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(stopped_early(10.0))


def test_ctrl_c_outlives_an_import_that_would_swallow_it() -> None:
    reached = []

    def import_it() -> None:
        with deferring_signals():
            signal.raise_signal(signal.SIGINT)
            reached.append("the end of the import")

    with pytest.raises(KeyboardInterrupt):
        import_it()
    assert reached == ["the end of the import"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_that_the_process_ignores_stays_ignored() -> None:
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with deferring_signals():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, former)


async def test_without_a_signal_the_result_comes_through() -> None:
    assert await unless_stopped(asyncio.sleep(0, "engine"), 1.0, on_stop=lambda: None) == "engine"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_signal_while_the_engine_starts_ends_serve_as_a_shell_expects(
    run: Callable[..., int],
    cluster: FakeCluster,
    checkpoint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def start_for_ever(*_arguments: object, gateway: object, control: StartControl) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        while True:
            control.check()
            time.sleep(0.001)

    monkeypatch.setattr("raydix.runtime.api.engine_start.start_engine", start_for_ever)
    assert run("serve", checkpoint) == 130
    printed = capsys.readouterr()
    assert "stopping before the engine serves" in printed.out
    assert printed.err == ""


def test_the_log_is_json_if_asked_for(
    run: Callable[..., int],
    cluster: FakeCluster,
    checkpoint: str,
    fate: list[Callable[[], None]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    fate.append(lambda: os.kill(os.getpid(), signal.SIGINT))
    assert run("serve", checkpoint, "--log-json") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"serve"} == {line["actor"] for line in lines}
    assert any("engine raydix is ready" in line["message"] for line in lines)
