"""What surrounds a `StorageSwitch` in its tests: actors and a HostMemory that the test plays."""

import asyncio
from dataclasses import replace
from typing import Any

from raydix.runtime.actors.supervision.restarts import Supervision
from raydix.runtime.actors.supervision.storage_switch import StorageSwitch
from raydix.runtime.config.l3 import FakeL3Section, L3Section

QUICK = Supervision(
    heartbeat_interval_s=0.0,
    open_timeout_s=0.05,
    drain_timeout_s=0.05,
    first_backoff_s=0.0,
    max_backoff_s=0.0,
    max_crashes=1,
)


class FakeActor:
    """A storage actor that the test ends."""

    def __init__(self, bench: "Bench", number: int) -> None:
        self.pid = number
        self.ended = asyncio.Event()
        self._bench = bench

    async def call(self, method: str, *arguments: Any) -> Any:
        self._bench.log.append(f"{method} {self.pid}")
        if method == "require_answer" and self._bench.answer_error is not None:
            raise self._bench.answer_error
        if method == "last_error":
            return self._bench.last_error

    async def ping(self) -> None:
        await asyncio.sleep(0.001)

    async def wait_ended(self) -> None:
        await self.ended.wait()

    def release(self) -> None:
        self.kill()

    def kill(self) -> None:
        if not self.ended.is_set():
            self._bench.log.append(f"end {self.pid}")
        self.ended.set()


class Bench:
    """What surrounds a switch, and a log of what happens in it."""

    def __init__(self, storage_retry_s: float = 300.0) -> None:
        self.log: list[str] = []
        self.actors: list[FakeActor] = []
        self.open_error: Exception | None = None
        self.answer_error: Exception | None = None
        self.last_error: dict[str, Any] | None = None
        self.hangs = False
        self.is_drained = True
        self.switch = StorageSwitch(self, replace(QUICK, storage_retry_s=storage_retry_s))

    async def make_storage(self, number: int, incarnation: int) -> FakeActor:
        self.actors.append(FakeActor(self, number))
        return self.actors[-1]

    async def open_storage(self, actor: Any, section: L3Section) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        if self.open_error is not None:
            raise self.open_error
        self.log.append(f"open {actor.pid}")

    async def tell_host(self, method: str, *arguments: Any) -> Any:
        self.log.append(method)
        return self.is_drained

    async def until(self, *lines: str) -> None:
        async with asyncio.timeout(10):
            while self.log[-len(lines) :] != list(lines):
                await asyncio.sleep(0)


SECTION = FakeL3Section(backend="fake")
OTHER = FakeL3Section(backend="fake", latency_s=0.5)
