"""Switching between backends whose actors and HostMemory the test plays."""

import asyncio
from typing import Any

import pytest

from raydix.errors import ConfigError, EngineDead
from raydix.runtime.storage.last_error import LastError
from tests.runtime.actors.supervision.switch_bench import OTHER, SECTION, Bench, FakeActor

ATTACHED = ["open 1", "require_answer 1", "serve 1", "wait_storage"]


async def test_new_backend_is_opened_before_the_one_in_use_is_left_and_serves_after_it() -> None:
    bench = Bench()
    assert await bench.switch.attach(SECTION) is None
    assert bench.log == ATTACHED

    bench.is_drained = False
    assert await bench.switch.attach(SECTION) == "fake"
    assert bench.log[4:] == [
        "open 2",
        "require_answer 2",
        "retire_storage",
        "last_error 1",
        "end 1",
        "detach_storage",
        "serve 2",
        "wait_storage",
    ]

    await bench.switch.end()


@pytest.mark.parametrize("attaches", [False, True])
async def test_who_waits_for_storage_waits_for_what_is_used_after_a_switch(attaches: bool) -> None:
    bench = Bench()
    bench.hangs = True
    bench.switch.start(SECTION)
    waiting = asyncio.create_task(bench.switch.met())
    await asyncio.sleep(0)
    bench.hangs = False

    await (bench.switch.attach(SECTION) if attaches else bench.switch.detach())
    async with asyncio.timeout(10):
        await waiting
    assert bench.log[-1] == ("wait_storage" if attaches else "detach_storage")
    await bench.switch.end()


async def test_who_waits_for_storage_is_told_that_it_cannot_work() -> None:
    bench = Bench()
    bench.open_error = ConfigError("wrong address")
    bench.switch.start(SECTION)
    with pytest.raises(ConfigError, match="wrong address"):
        await bench.switch.met()


async def test_who_waits_for_storage_is_told_of_the_end_of_the_engine() -> None:
    bench = Bench()
    bench.hangs = True
    bench.switch.start(SECTION)
    waiting = asyncio.create_task(bench.switch.met())
    await asyncio.sleep(0)
    await bench.switch.end()
    with pytest.raises(EngineDead, match="given up"):
        await waiting


@pytest.mark.parametrize("hangs", [False, True])
async def test_backend_that_does_not_open_leaves_everything_as_it_was(hangs: bool) -> None:
    bench = Bench()
    await bench.switch.attach(SECTION)
    before = bench.switch.current
    bench.hangs, bench.open_error = hangs, ConfigError("wrong address was not open")
    with pytest.raises(ConfigError, match="was not open"):
        await bench.switch.attach(SECTION)
    assert bench.log == [*ATTACHED, "end 2"]
    assert bench.switch.current is before
    await bench.switch.end()


async def test_backend_whose_server_does_not_answer_is_not_attached_unless_it_is_lazy() -> None:
    bench = Bench()
    bench.answer_error = ConfigError("connection refused")
    with pytest.raises(ConfigError, match="connection refused"):
        await bench.switch.attach(SECTION)
    assert bench.switch.current is None
    assert bench.log == ["open 1", "require_answer 1", "end 1"]

    await bench.switch.attach(SECTION.model_copy(update={"lazy": True}))
    assert bench.log[3:] == ["open 2", "serve 2", "wait_storage"]
    await bench.switch.end()


async def test_backend_that_has_served_is_used_again_without_asking_for_an_answer() -> None:
    bench = Bench()
    await bench.switch.attach(SECTION)
    bench.answer_error = ConfigError("connection refused")
    bench.actors[0].ended.set()
    await bench.until("open 1", "serve 1")
    await bench.switch.end()


async def test_why_a_backend_could_not_be_used_is_kept_by_its_name() -> None:
    bench = Bench()
    assert bench.switch.last_errors(None) == {}
    bench.answer_error = ConfigError("connection refused")
    for _ in range(2):
        with pytest.raises(ConfigError):
            await bench.switch.attach(SECTION)

    own = LastError(text="reset by peer", at_s=0.0, num_errors=5)
    file = LastError(text="disk full", at_s=1.0, num_errors=1)
    fake = bench.switch.last_errors({"backend": "fake", "last_error": own.to_values()})["fake"]
    assert (fake.text, fake.num_errors) == ("connection refused", 7)
    errors = bench.switch.last_errors({"backend": "file", "last_error": file.to_values()})
    assert errors["file"] == file
    assert (errors["fake"].text, errors["fake"].num_errors) == ("connection refused", 2)


async def test_last_error_of_a_backend_outlives_its_actor() -> None:
    bench = Bench()
    await bench.switch.attach(SECTION)
    own = LastError(text="reset by peer", at_s=1.0, num_errors=5)
    bench.last_error = own.to_values()
    await bench.switch.detach()
    assert bench.switch.last_errors(None) == {"fake": own}


async def test_detaching_ends_the_actor_and_a_second_time_does_nothing() -> None:
    bench = Bench()
    await bench.switch.attach(SECTION)
    assert await bench.switch.detach() == "fake"
    assert await bench.switch.detach() is None
    left = ["retire_storage", "last_error 1", "end 1", "detach_storage"]
    assert bench.log == [*ATTACHED, *left]


async def test_actor_that_ends_is_made_again_and_serves_the_same_backend() -> None:
    bench = Bench()
    await bench.switch.attach(SECTION)
    bench.actors[0].ended.set()
    await bench.until("open 1", "serve 1")
    assert len(bench.actors) == 2
    await bench.switch.end()


async def test_backend_that_is_given_up_while_it_is_attached_is_an_error_of_the_caller() -> None:
    bench = Bench()

    async def fail(method: str, *arguments: Any) -> Any:
        if method == "serve":
            raise EngineDead("it ended")

    original = bench.make_storage

    async def make(number: int, incarnation: int) -> FakeActor:
        actor = await original(number, incarnation)
        actor.call = fail  # type: ignore[method-assign]
        return actor

    bench.make_storage = make  # type: ignore[method-assign]
    with pytest.raises(EngineDead, match="was given up"):
        await bench.switch.attach(SECTION)
    assert bench.switch.current is None


class MuteHost(Bench):
    """A HostMemory that takes calls of one name and never answers them."""

    def __init__(self, mute: str) -> None:
        super().__init__()
        self.mute: str | None = mute

    async def tell_host(self, method: str, *arguments: Any) -> Any:
        await super().tell_host(method, *arguments)
        if method == self.mute:
            await asyncio.Event().wait()
        return True


@pytest.mark.parametrize("mute", ["retire_storage", "detach_storage", "wait_storage"])
async def test_attach_that_host_memory_does_not_answer_ends_and_the_former_backend_serves_again(
    mute: str,
) -> None:
    bench = MuteHost("")
    await bench.switch.attach(SECTION)
    former = bench.switch.current
    bench.mute = mute
    with pytest.raises(EngineDead, match="HostMemory did not"):
        await bench.switch.attach(OTHER)

    bench.mute = None
    assert bench.switch.current is not None
    assert former is not None
    assert bench.switch.current.section is former.section
    await bench.until("open 3", "serve 3")
    assert all(actor.ended.is_set() for actor in bench.actors[:2])
    assert await bench.switch.attach(SECTION) == "fake"
    await bench.switch.end()


async def test_attach_without_a_former_backend_that_fails_leaves_none() -> None:
    bench = MuteHost("wait_storage")
    with pytest.raises(EngineDead, match="did not meet"):
        await bench.switch.attach(SECTION)
    assert bench.switch.current is None
    assert bench.log[-2:] == ["end 1", "detach_storage"]
    bench.mute = None
    assert await bench.switch.attach(SECTION) is None
    await bench.switch.end()


async def test_backend_that_dies_for_good_before_host_memory_met_it_does_not_hold_the_switch() -> (
    None
):
    bench = MuteHost("wait_storage")
    attaching = asyncio.create_task(bench.switch.attach(SECTION))
    await bench.until("wait_storage")
    bench.open_error = OSError("gone")
    bench.actors[0].ended.set()
    with pytest.raises(EngineDead):
        await attaching
    assert bench.switch.current is None
    assert await bench.switch.detach() is None
    await bench.switch.end()


async def test_detach_that_host_memory_does_not_answer_leaves_the_backend_in_use() -> None:
    bench = MuteHost("retire_storage")
    await bench.switch.attach(SECTION)
    with pytest.raises(EngineDead, match="did not leave"):
        await bench.switch.detach()
    assert bench.switch.current is not None
    await bench.until("open 2", "serve 2")
    bench.mute = None
    assert await bench.switch.detach() == "fake"


async def test_the_end_of_the_engine_ends_an_attach_and_its_actor() -> None:
    bench = MuteHost("wait_storage")
    attaching = asyncio.create_task(bench.switch.attach(SECTION))
    await bench.until("wait_storage")
    await bench.switch.end()
    with pytest.raises(EngineDead):
        await attaching
    assert len(bench.actors) == 1
    assert bench.actors[0].ended.is_set()
    with pytest.raises(EngineDead):
        await bench.switch.attach(SECTION)
