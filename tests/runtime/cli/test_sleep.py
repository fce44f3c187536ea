"""`raydix switch` without engines: what it refuses, and who is awake once it has failed."""

import asyncio
import signal
from typing import Any

import pytest

from raydix.errors import BadRequest, EngineAsleep
from raydix.runtime.actors import engine_record
from raydix.runtime.actors.bootstrap import control_client
from raydix.runtime.actors.service import running
from raydix.runtime.cli import sleep
from raydix.runtime.scheduler.phase import Phase


def test_an_engine_takes_no_turns_with_itself() -> None:
    # It would be drained, and pause its streams, only to be woken again.
    with pytest.raises(BadRequest, match="both left; expected two"):
        sleep.switch("left", "left")


SLEPT = {"held_bytes": 8 << 20, "left_bytes": 1 << 20, "lost_pages": 0}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Phase.AWAKE, "engine chat was awake already"),
        (Phase.PARKING, "engine chat is awake: it was falling asleep, which is called off"),
        (Phase.GIVING_BACK, "engine chat is awake after 1.5 s"),
        (Phase.ASLEEP, "engine chat is awake after 1.5 s"),
        (Phase.WAKING, "engine chat is awake, as somebody had asked before, 1.5 s later"),
    ],
)
def test_of_many_who_wake_an_engine_each_hears_what_its_own_order_did(
    found: Phase, words: str
) -> None:
    assert sleep.words_of_wake("chat", found, 1.5) == words


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Phase.AWAKE, "engine chat sleeps; of 8MiB"),
        (Phase.WAKING, "engine chat sleeps; of 8MiB"),
        (Phase.BACKING_UP, "engine chat sleeps, as somebody had asked before; of 8MiB"),
        (Phase.ASLEEP, "engine chat slept already; of 8MiB"),
    ],
)
def test_of_many_who_put_an_engine_to_sleep_each_hears_what_its_own_order_did(
    found: Phase, words: str
) -> None:
    assert sleep.words_of_sleep("chat", SLEPT | {"found": found.value}).startswith(words)


class Endless:
    """An engine, `left`, whose calls end by Ctrl-C alone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, asleep: str) -> None:
        self._asleep = asleep
        monkeypatch.setattr(engine_record, "find_record", lambda name: name)
        monkeypatch.setattr(running, "look_at_service", self._look)
        monkeypatch.setattr(control_client, "call_supervisor", self._call)

    async def _look(self, name: str) -> None:
        return None

    async def _call(self, name: str, record: object, method: str, *_: Any) -> Any:
        if method == "phase":
            return "awake"
        if name == self._asleep:
            return SLEPT | {"found": "awake"}
        signal.raise_signal(signal.SIGINT)
        await asyncio.Event().wait()


FALLS = (
    "engine left goes on falling asleep, as raydix status shows; raydix wake left calls that off"
)


@pytest.mark.parametrize(
    ("verb", "arguments", "asleep", "told"),
    [
        ("sleep", ["left"], "", FALLS),
        ("wake", ["left"], "", "engine left goes on waking, as raydix status shows"),
        (
            "switch",
            ["left", "right"],
            "",
            f"{FALLS}; right is not woken: raydix switch left right goes on from there",
        ),
        (
            "switch",
            ["left", "right"],
            "left",
            "engine right goes on waking, as raydix status shows; left sleeps",
        ),
    ],
)
def test_whoever_is_interrupted_is_told_what_goes_on(
    verb: str,
    arguments: list[str],
    asleep: str,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Endless(monkeypatch, asleep)
    with pytest.raises(KeyboardInterrupt):
        getattr(sleep, verb)(*arguments)
    assert capsys.readouterr().err == f"{told}\n"


class Engines:
    """Engines of which one, `left`, sleeps or is awake, and `right` cannot wake."""

    def __init__(self, phase: str) -> None:
        self.phase = phase
        self.calls: list[tuple[str, str]] = []

    async def call(self, name: str, method: str, *_: Any, goes_on: str | None = None) -> Any:
        self.calls.append((name, method))
        match name, method:
            case "left", "phase":
                return self.phase
            case "left", "fall_asleep":
                return SLEPT | {"found": self.phase}
            case "right", "wake":
                raise EngineAsleep("Engine right sleeps on: no room")
            case _:
                return {"seconds": 1.0, "found": "asleep"}


@pytest.mark.parametrize(
    ("phase", "is_woken", "words"),
    [("awake", True, "left is awake again"), ("asleep", False, "left sleeps as before")],
)
def test_who_slept_before_a_switch_that_fails_is_not_woken(
    monkeypatch: pytest.MonkeyPatch, phase: str, is_woken: bool, words: str
) -> None:
    engines = Engines(phase)
    monkeypatch.setattr(sleep, "_call", engines.call)
    with pytest.raises(EngineAsleep, match=words):
        sleep.switch("left", "right")
    assert (("left", "wake") in engines.calls) is is_woken
