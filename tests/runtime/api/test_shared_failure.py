import asyncio
import contextlib
from pathlib import Path

import pytest

from raydix.errors import EngineDead
from raydix.runtime.actors.links.link import LinkClosed
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.api.shared_failure import SharedFailure
from tests.runtime.api.fake_engine import FakeCluster


async def test_who_waits_for_an_attempt_shares_its_failure_and_later_ones_try_again() -> None:
    turns = SharedFailure()
    num_attempts = 0

    async def attempt() -> None:
        nonlocal num_attempts
        async with turns.turn():
            num_attempts += 1
            await asyncio.sleep(0)
            raise EngineDead(f"attempt {num_attempts}")

    errors = await asyncio.gather(*(attempt() for _ in range(100)), return_exceptions=True)
    assert {str(error) for error in errors} == {"attempt 1"}
    with pytest.raises(EngineDead, match="attempt 2"):
        await attempt()


async def test_who_gives_up_its_attempt_leaves_it_to_the_next() -> None:
    turns = SharedFailure()

    async def attempt() -> str:
        async with turns.turn():
            await asyncio.sleep(0)
            return "reached"

    first, second = asyncio.create_task(attempt()), asyncio.create_task(attempt())
    await asyncio.sleep(0)
    first.cancel()
    assert await second == "reached"
    with contextlib.suppress(asyncio.CancelledError):
        await first


async def test_many_requests_hear_together_that_the_engine_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_dials = 0

    async def dial(*_: object) -> None:
        nonlocal num_dials
        num_dials += 1
        await asyncio.sleep(0)
        raise LinkClosed("nobody listens")

    cluster = FakeCluster(str(tmp_path))
    cluster.install(monkeypatch)
    cluster.engines["raydix"] = cluster.handle
    monkeypatch.setattr("raydix.runtime.api.engine_place.dial_engine", dial)
    engine = AsyncLLM()
    asked = (anext(engine.generate([1])) for _ in range(50))
    errors = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(error) for error in errors} == {EngineDead}
    assert num_dials == 1
