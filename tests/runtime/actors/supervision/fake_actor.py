"""An actor whose life the test decides, and a supervision that does not wait."""

import asyncio
from collections.abc import Callable
from typing import Any

from raydix.runtime.actors.supervision.restarts import Supervision

QUICK = Supervision(
    heartbeat_interval_s=0.0,
    heartbeat_deadline_s=0.05,
    bring_up_timeout_s=1.0,
    first_backoff_s=0.0,
    max_backoff_s=0.0,
    max_crashes=3,
)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


class FakeActor:
    """An actor whose life the test decides."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.is_hung = False
        self.is_asked = False
        self._ended = asyncio.Event()

    async def call(self, method: str, *arguments: Any) -> Any:
        raise NotImplementedError

    async def ping(self) -> None:
        self.is_asked = True
        await asyncio.sleep(0.001)
        self.is_asked = False
        for _ in range(5):  # an answer comes by a thread and is heard in steps
            await asyncio.sleep(0)
        if self.is_hung:
            await asyncio.Event().wait()

    async def wait_ended(self) -> None:
        await self._ended.wait()

    def kill(self) -> None:
        self._ended.set()

    def release(self) -> None:
        self.kill()

    @property
    def is_ended(self) -> bool:
        return self._ended.is_set()
