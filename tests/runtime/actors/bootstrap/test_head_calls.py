"""A head of Ray that does not answer keeps nobody waiting who has not asked."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import ray
from ray.exceptions import RpcError

from raydix.errors import ConfigError, EngineDead
from raydix.runtime.actors.bootstrap import head_calls, l2_spawner
from raydix.runtime.actors.bootstrap.head_calls import find_actor, kill_actor, make_actor
from raydix.runtime.actors.bootstrap.l2_spawner import find_l2, spawn_l2


class Head:
    """Answers once `answers` is set; makes handles, and notes which it kills."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.num_asked = 0
        self.killed: list[object] = []
        self.error: Exception | None = None
        self.num_taken = 0
        """How often the name of an actor is still taken."""

    def ask(self, *_: object, **__: object) -> Any:
        self.num_asked += 1
        assert self.answers.wait(10), "the test has ended"
        if self.error is not None:
            raise self.error
        if self.num_taken:
            self.num_taken -= 1
            raise ValueError("The name is already taken.")
        return "handle"

    def kill(self, handle: object) -> None:
        self.ask()
        self.killed.append(handle)

    def remote(self, *_: object, **__: object) -> Any:
        return self.ask() if __ else self

    def options(self, **_: object) -> "Head":
        return self

    async def asked(self, number: int) -> None:
        """Return once it was asked so often: until then this loop runs."""
        async with asyncio.timeout(10):
            while self.num_asked < number:
                await asyncio.sleep(0)


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Iterator[Head]:
    head = Head()
    monkeypatch.setattr(ray, "remote", head.remote)
    monkeypatch.setattr(ray, "get_actor", head.ask)
    monkeypatch.setattr(ray, "kill", head.kill)
    yield head
    head.answers.set()


def make() -> Awaitable[Any]:
    return make_actor(Head, {"argument": 1}, {"name": "raydix:e:gpu0"})


CALLS: dict[str, Callable[[], Awaitable[Any]]] = {
    "make": make,
    "find": lambda: find_actor("raydix:l2:host", "raydix"),
}


@pytest.mark.parametrize("call", CALLS)
async def test_a_head_that_does_not_answer_stops_no_loop(head: Head, call: str) -> None:
    asking = asyncio.ensure_future(CALLS[call]())
    await head.asked(1)
    assert not asking.done()
    head.answers.set()
    assert await asking == "handle"


async def test_whoever_has_an_actor_killed_does_not_wait_for_the_head(head: Head) -> None:
    kill_actor("handle", "raydix:e:gpu0")
    await head.asked(1)
    assert head.killed == []
    head.answers.set()
    async with asyncio.timeout(10):
        while head.killed != ["handle"]:
            await asyncio.sleep(0)


async def test_an_actor_that_comes_after_nobody_waits_any_more_is_killed(head: Head) -> None:
    making = asyncio.ensure_future(make())
    await head.asked(1)
    making.cancel()
    await asyncio.gather(making, return_exceptions=True)
    assert making.cancelled()
    head.answers.set()
    async with asyncio.timeout(10):
        while head.killed != ["handle"]:
            await asyncio.sleep(0)


async def test_an_actor_gets_the_name_of_one_that_has_just_ended(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_calls, "_NAME_RETRY_S", 0.0)
    head.answers.set()
    head.num_taken = 3
    assert await make() == "handle"
    monkeypatch.setattr(head_calls, "_NAME_RELEASE_S", -1.0)
    head.num_taken = 1
    with pytest.raises(ValueError, match="already taken"):
        await make()


async def test_what_the_head_raises_is_ours(head: Head) -> None:
    head.error = RpcError("the head is lost")
    head.answers.set()
    with pytest.raises(EngineDead, match="raydix:e:gpu0 cannot be reached"):
        await make()
    assert await find_l2("raydix:l2:host", 1, "log") is None


async def test_an_l2_that_the_head_makes_too_late_is_refused_in_time_and_killed(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(l2_spawner, "_START_S", 0.01)
    with pytest.raises(ConfigError, match=r"L2 has not started within 0\.01 s"):
        await spawn_l2(
            "raydix:l2:host", "ab" * 28, node=None, reserved_bytes=1, log_path="", exporter=None
        )
    head.answers.set()
    async with asyncio.timeout(10):
        while head.killed != ["handle"]:
            await asyncio.sleep(0)
