"""Who counts as standing still."""

import asyncio
from itertools import chain, repeat

import pytest

from raydix.runtime.actors.pulls import stalls
from raydix.runtime.actors.pulls.stalls import wait_for_stall


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks follow each other at once."""
    sleep = asyncio.sleep
    monkeypatch.setattr(stalls.asyncio, "sleep", lambda _: sleep(0))


async def looks_until_stall(*told: int | None) -> int:
    """The number of looks, if this is told at first and then nothing changes any more."""
    num_looks = 0
    last = told[-1]
    progress = chain(told, repeat(last))

    def look() -> int | None:
        nonlocal num_looks
        num_looks += 1
        return next(progress)

    await wait_for_stall(look, 10.0)
    return num_looks


async def test_a_peer_that_owes_something_and_does_nothing_is_found_after_ten_looks() -> None:
    assert await looks_until_stall(5) == 11


async def test_whatever_it_does_begins_the_count_anew() -> None:
    assert await looks_until_stall(5, 5, 5, 5, 6, 6, 6, 7) == 8 + 10


async def test_a_peer_that_owes_nothing_may_stand_still() -> None:
    assert await looks_until_stall(*[5] * 9, *[None] * 50, 5) == 60 + 10
