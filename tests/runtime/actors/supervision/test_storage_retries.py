"""Backends that are given up, and when they are tried again."""

import asyncio
from typing import Any

import pytest

from raydix.errors import ConfigError
from tests.runtime.actors.supervision.switch_bench import OTHER, SECTION, Bench


async def test_backend_whose_actor_keeps_ending_is_given_up() -> None:
    bench = Bench()
    await bench.switch.attach(SECTION)
    bench.open_error = OSError("gone")
    bench.actors[0].ended.set()
    await bench.until("detach_storage")
    assert bench.switch.current is None
    assert await bench.switch.detach() is None
    await bench.switch.end()


async def given_up(bench: Bench) -> None:
    await bench.switch.attach(SECTION)
    bench.open_error = OSError("gone")
    bench.actors[0].ended.set()
    await bench.until("detach_storage")


async def test_backend_that_was_given_up_is_tried_until_it_works_again() -> None:
    bench = Bench(storage_retry_s=0.0)
    await given_up(bench)
    await bench.until("end 2")
    bench.open_error = None
    await bench.until("wait_storage")
    assert bench.switch.current is not None
    assert "gone" in bench.switch.last_errors(None)["fake"].text
    await bench.switch.end()


@pytest.mark.parametrize("attaches", [False, True])
async def test_backend_that_was_given_up_is_not_tried_once_something_else_is_asked_for(
    attaches: bool,
) -> None:
    bench = Bench(storage_retry_s=0.01)
    await given_up(bench)
    bench.open_error = None
    await (bench.switch.attach(SECTION) if attaches else bench.switch.detach())
    num_actors = len(bench.actors)
    current = bench.switch.current
    assert bench.switch._retrying is not None
    await asyncio.wait([bench.switch._retrying])
    assert len(bench.actors) == num_actors
    assert bench.switch.current is current
    await bench.switch.end()


async def lose_while_another_opens(bench: Bench) -> asyncio.Task[str | None]:
    """Give up the backend in use while another one is attached, which hangs."""
    await bench.switch.attach(SECTION)
    bench.hangs = True
    attaching = asyncio.create_task(bench.switch.attach(OTHER))
    async with asyncio.timeout(10):
        while len(bench.actors) < 2:
            await asyncio.sleep(0)
        bench.actors[0].ended.set()
        while len(bench.actors) < 3:
            await asyncio.sleep(0)
        bench.actors[2].ended.set()
        while bench.switch.current is not None:
            await asyncio.sleep(0)
    return attaching


async def test_backend_that_is_given_up_while_another_fails_to_open_is_tried_again() -> None:
    bench = Bench(storage_retry_s=0.0)
    attaching = await lose_while_another_opens(bench)
    with pytest.raises(ConfigError, match="was not open"):
        await attaching

    bench.hangs = False
    await bench.until("wait_storage")
    assert bench.switch.current is not None
    assert bench.switch.current.section is SECTION
    await bench.switch.end()


async def test_backend_that_is_given_up_while_another_fails_is_not_tried_once_none_is_wanted() -> (
    None
):
    bench = Bench(storage_retry_s=0.0)
    attaching = await lose_while_another_opens(bench)
    await asyncio.gather(attaching, bench.switch.detach(), return_exceptions=True)
    assert bench.switch._retrying is not None
    await asyncio.wait([bench.switch._retrying])
    assert bench.switch.current is None


async def test_backend_that_is_given_up_just_as_its_switch_ends_is_tried_again() -> None:
    bench = Bench(storage_retry_s=0.0)
    original = bench.tell_host

    async def tell_host(method: str, *arguments: Any) -> Any:
        if method == "wait_storage" and len(bench.actors) == 1:
            # Host memory has met it: it answers once its actor is lost for good.
            bench.open_error = OSError("gone")
            bench.actors[0].ended.set()
            while bench.switch.current is not None:
                await asyncio.sleep(0)
            bench.open_error = None
        return await original(method, *arguments)

    bench.tell_host = tell_host  # type: ignore[method-assign]
    assert await bench.switch.attach(SECTION) is None
    async with asyncio.timeout(10):
        while bench.switch.current is None:
            await asyncio.sleep(0)
    await bench.switch.end()


async def test_of_two_backends_that_were_given_up_the_one_wanted_last_is_tried() -> None:
    bench = Bench(storage_retry_s=0.05)
    await given_up(bench)
    bench.open_error = None
    await bench.switch.attach(OTHER)
    bench.open_error = OSError("gone")
    bench.actors[-1].ended.set()
    await bench.until("detach_storage")

    bench.open_error = None
    await bench.until("wait_storage")
    assert bench.switch.current is not None
    assert bench.switch.current.section is OTHER
    await bench.switch.end()
