from concurrent.futures import Future
from typing import Any

import pytest

from raydix.errors import CheckpointError, EngineDead
from raydix.runtime.actors.bootstrap import start_control
from raydix.runtime.actors.bootstrap.start_control import StartControl


class SlowRay:
    """`ray.wait` and `ray.get`; a result is there after some polls."""

    def __init__(self, num_polls: int, on_poll: Any = None) -> None:
        self._num_polls = num_polls
        self._on_poll = on_poll

    def wait(self, references: list[str], timeout: float) -> tuple[list[str], list[str]]:
        if self._num_polls == 0:
            return references, []
        self._num_polls -= 1
        if self._on_poll is not None:
            self._on_poll()
        return [], references

    def get(self, reference: str) -> str:
        assert self._num_polls == 0
        return f"result of {reference}"


def test_a_result_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_control, "ray", SlowRay(3))
    assert StartControl().get("start") == "result of start"


def test_a_start_that_is_called_off_waits_for_nothing_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    control = StartControl(precondition=Future())
    monkeypatch.setattr(start_control, "ray", SlowRay(1000, on_poll=control.call_off))
    for step in (lambda: control.get("start"), control.wait_precondition, control.check):
        with pytest.raises(EngineDead, match="was called off"):
            step()


def test_what_the_precondition_raises_ends_the_start() -> None:
    tokenizer: Future[None] = Future()
    tokenizer.set_exception(CheckpointError("the tokenizer is broken"))
    with pytest.raises(CheckpointError, match="is broken"):
        StartControl(precondition=tokenizer).wait_precondition()


def test_a_precondition_that_holds_lets_the_start_go_on() -> None:
    tokenizer: Future[str] = Future()
    tokenizer.set_result("tokenizer")
    StartControl(precondition=tokenizer).wait_precondition()
    StartControl().wait_precondition()


def test_a_precondition_that_has_failed_is_told_at_the_next_step() -> None:
    tokenizer: Future[None] = Future()
    control = StartControl(precondition=tokenizer)
    control.check()
    tokenizer.set_exception(CheckpointError("the tokenizer is broken"))
    with pytest.raises(CheckpointError, match="is broken"):
        control.check()
