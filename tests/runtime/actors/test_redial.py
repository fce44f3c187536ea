"""How an actor finds whom it belongs to again."""

import logging
import threading
from collections.abc import Iterator

import pytest

from raydix.runtime.actors.links.link import BlockingLink, LinkClosed, LinkRefused, LinkSilent
from raydix.runtime.actors.redial import redial
from raydix.runtime.messages.hello import Hello, Role
from raydix.runtime.testing.links import in_process_blocking_pair

WARNINGS = ("another secret", "another secret", "another version", "another version")


async def test_each_reason_why_there_is_no_link_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    hello = Hello(role=Role.STORAGE, name="x", incarnation=1, pid=1)
    _, link = in_process_blocking_pair(hello, hello)
    answers: Iterator[LinkClosed | BlockingLink] = iter(
        [*map(LinkRefused, WARNINGS), LinkClosed("nobody listens"), LinkSilent("5 s"), link]
    )

    def dial(_: threading.Event) -> BlockingLink:
        answer = next(answers)
        if isinstance(answer, LinkClosed):
            raise answer
        return answer

    assert redial(dial, threading.Event(), "HostMemory", 60.0) is link
    warned = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert warned == [
        "HostMemory has refused this actor: another secret",
        "HostMemory has refused this actor: another version",
        "HostMemory has not answered this actor: 5 s",
    ]
    assert caplog.messages[-1].startswith("linked to HostMemory")


def test_patience_ends() -> None:
    def dial(_: threading.Event) -> BlockingLink:
        raise LinkClosed("nobody listens")

    with pytest.raises(LinkClosed, match="nobody listens"):
        redial(dial, threading.Event(), "the Scheduler", -1.0)


def test_whoever_is_stopped_gets_no_link() -> None:
    stop = threading.Event()

    def dial(given: threading.Event) -> BlockingLink:
        given.set()
        raise LinkClosed("stopped")

    assert redial(dial, stop, "the Scheduler", 60.0) is None
