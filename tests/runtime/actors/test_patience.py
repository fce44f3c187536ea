import asyncio
import time

import pytest

from raydix.runtime.actors.patience import within

SHORT_S = 0.02


async def test_a_result_in_time_is_given() -> None:
    assert await within(60.0, asyncio.sleep(0, "done")) == "done"


async def test_an_error_in_time_is_raised() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await within(60.0, fail())


async def test_work_that_takes_longer_is_cancelled() -> None:
    work = asyncio.create_task(asyncio.Event().wait())
    with pytest.raises(TimeoutError, match=r"within 0\.02 s"):
        await within(SHORT_S, work)
    assert work.cancelled()


async def test_cancelling_the_wait_cancels_the_work() -> None:
    work = asyncio.create_task(asyncio.Event().wait())
    waiting = asyncio.create_task(within(60.0, work))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    assert work.cancelled()


async def test_an_answer_that_came_during_a_stall_of_the_own_loop_is_in_time() -> None:
    loop = asyncio.get_running_loop()
    answer = loop.create_future()
    waiting = asyncio.create_task(within(SHORT_S, answer))
    await asyncio.sleep(0)
    # As a thread or a socket would: it is there, but the loop has yet to hear it, in two steps.
    loop.call_soon(loop.call_soon, answer.set_result, "here")
    time.sleep(3 * SHORT_S)  # the stall
    assert await waiting == "here"
