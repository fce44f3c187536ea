"""`raydix switch` without engines: what it refuses, and who is awake once it has failed."""

from typing import Any

import pytest

from raydix.errors import BadRequest, EngineAsleep
from raydix.runtime.cli import sleep


def test_an_engine_takes_no_turns_with_itself() -> None:
    # It would be drained, and pause its streams, only to be woken again.
    with pytest.raises(BadRequest, match="both left; expected two"):
        sleep.switch("left", "left")


class Engines:
    """Engines of which one, `left`, sleeps or is awake, and `right` cannot wake."""

    def __init__(self, phase: str) -> None:
        self.phase = phase
        self.calls: list[tuple[str, str]] = []

    async def call(self, name: str, method: str, *_: Any) -> Any:
        self.calls.append((name, method))
        match name, method:
            case "left", "phase":
                return self.phase
            case "left", "fall_asleep":
                return {"held_bytes": 8, "left_bytes": 0, "lost_pages": 0}
            case "right", "wake":
                raise EngineAsleep("Engine right sleeps on: no room")
            case _:
                return {"seconds": 1.0}


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
