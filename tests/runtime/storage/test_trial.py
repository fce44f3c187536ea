"""Trying a store without an engine."""

import socket
from pathlib import Path

import pytest

from raydix.runtime.config.l3 import (
    FakeL3Section,
    FileL3Section,
    L3Section,
    PluginL3Section,
    RedisL3Section,
)
from raydix.runtime.storage.trial import find_obstacle


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_a_store_that_answers_has_no_obstacle_and_keeps_no_trace(tmp_path: Path) -> None:
    assert find_obstacle(FileL3Section(backend="file", path=str(tmp_path / "a" / "b"))) is None
    assert find_obstacle(FileL3Section(backend="file", path=str(tmp_path))) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (PluginL3Section(backend="plugin", name="none"), "expected an entry point"),
        (
            RedisL3Section(backend="redis", url=f"redis://127.0.0.1:{closed_port()}"),
            "Connection refused",
        ),
    ],
    ids=["plugin", "redis"],
)
def test_the_obstacle_says_what_the_store_or_its_adapter_says(
    section: L3Section, words: str
) -> None:
    assert words in str(find_obstacle(section))


def test_a_store_that_hangs_is_not_waited_for_long() -> None:
    hanging = FakeL3Section(backend="fake", latency_s=1000.0)
    assert find_obstacle(hanging, timeout_s=1.0) == "it has not answered within 1 s"


def test_the_folder_that_is_told_of_is_the_one_of_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    text = str(find_obstacle(FileL3Section(backend="file", path=str(path))))
    assert f"cache.l3.path {path} cannot be used: Not a directory" in text
