import json
import logging
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from raydix.runtime.actors.log_format import format_json, format_text
from raydix.runtime.messages.log_line import LogLine


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def line(text: str, level: int = logging.INFO) -> LogLine:
    return LogLine(time_s=1767225600.0625, level=level, actor="gpu0", logger="raydix.x", text=text)


def test_a_line_says_time_level_and_actor() -> None:
    assert format_text(line("ready")) == "2026-01-01 00:00:00.062 INFO    gpu0       ready"


def test_a_line_of_one_of_several_engines_names_it_and_its_node() -> None:
    told = replace(line("ready"), engine="prod/1", node="10.0.0.3")
    assert format_text(told) == "2026-01-01 00:00:00.062 INFO    prod/1@10.0.0.3 gpu0       ready"
    shown = json.loads(format_json(told))
    assert (shown["engine"], shown["node"], shown["actor"]) == ("prod/1", "10.0.0.3", "gpu0")
    assert "engine" not in json.loads(format_json(line("ready")))


def test_each_line_of_a_text_says_whose_it_is() -> None:
    head = "2026-01-01 00:00:00.062 ERROR   gpu0       "
    assert format_text(line("one\ntwo", logging.ERROR)) == f"{head}one\n{head}two"


def test_what_a_terminal_would_obey_is_written_out() -> None:
    assert format_text(line("a\x1b[2Jb\tc")).endswith("a\\x1b[2Jb\tc")


def test_json_is_one_object_on_one_line() -> None:
    shown = format_json(line('"one"\ntwo', logging.WARNING))
    assert "\n" not in shown
    assert json.loads(shown) == {
        "time": "2026-01-01T00:00:00.062Z",
        "level": "warning",
        "actor": "gpu0",
        "logger": "raydix.x",
        "message": '"one"\ntwo',
    }
