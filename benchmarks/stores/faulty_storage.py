"""Engines whose storage can be broken and repaired while they serve."""

import asyncio
import math
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from benchmarks.engine.engines import Generate
from benchmarks.engine.sleeping_model import PAGE_TOKENS, build_model
from benchmarks.model.model_shapes import make_layout
from raydix.runtime.actors.bootstrap.engine_handle import EngineHandle
from raydix.runtime.actors.bootstrap.launch import start_engine
from raydix.runtime.actors.supervision.spawn import ActorKind
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.config.loading import load_config
from raydix.runtime.storage.backends.fake import FakeBackend, Faults
from raydix.runtime.testing.engine import InProcessEngine, in_process_engine
from tests.runtime.storage.backends.redis_server import RedisServer

LAYOUT = make_layout(PAGE_TOKENS, num_layers=1, num_kv_heads=1, head_dim=16)
"""8 KiB per page."""
PAGE_BYTES = LAYOUT.host_page_bytes(0)

Sections = Callable[[dict[str, Any] | None, int], dict[str, Any]]
"""Makes a configuration of section `cache.l3` and the bytes of a host page."""


class FaultyStorage(Protocol):
    """The storage of an engine, to be broken and repaired."""

    async def break_down(self) -> None:
        """Let the storage fail from now on."""
        ...

    async def repair(self) -> None:
        """Let the storage work from now on."""
        ...


class Served(Protocol):
    """An engine as its clients and this benchmark see it."""

    generate: Generate
    is_on_ray: bool

    async def settle(self) -> None:
        """Wait until nothing is in flight."""
        ...

    async def check(self) -> None:
        """Raise AccountingError if an invariant does not hold."""
        ...


class ServedInProcess:
    """A `Served` engine in this process."""

    is_on_ray = False

    def __init__(self, engine: InProcessEngine) -> None:
        self.engine = engine
        self.generate: Generate = engine.client.generate

    async def settle(self) -> None:
        """Wait until the engine has nothing to do."""
        await self.engine.settle(timeout_s=60.0)

    async def check(self) -> None:
        """Check the accounts of all actors."""
        await self.engine.check()


class ServedOnRay:
    """A `Served` engine of Ray actors."""

    is_on_ray = True

    def __init__(self, handle: EngineHandle, llm: AsyncLLM) -> None:
        self.handle = handle
        self.generate: Generate = llm.generate

    async def settle(self) -> None:
        """Wait until L3 has what it is to have."""
        while (await self.handle.call("stats"))["host"].get("l3_writes_pending", 0):
            await asyncio.sleep(0.05)

    async def check(self) -> None:
        """Check the accounts of all actors."""
        await self.handle.call("check")


class FakeFaults:
    """A `FaultyStorage` that is the fake backend, with these faults while it is broken."""

    def __init__(self, backend: FakeBackend, healthy: Faults, broken: Faults) -> None:
        self._backend = backend
        self._healthy = healthy
        self._broken = broken

    async def break_down(self) -> None:
        """Let the fake backend fail."""
        self._backend.set_faults(self._broken)

    async def repair(self) -> None:
        """Let the fake backend work again."""
        self._backend.set_faults(self._healthy)


class StoppedServer:
    """A `FaultyStorage` that is a stopped Redis server: connections stand, nothing is answered."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server

    async def break_down(self) -> None:
        """Stop the server's process."""
        self._server.pause()

    async def repair(self) -> None:
        """Let the server's process go on."""
        self._server.resume()


@dataclass
class KilledActor:
    """A `FaultyStorage` whose actor gets a SIGKILL; the Supervisor makes another one."""

    handle: EngineHandle

    async def break_down(self) -> None:
        """Kill the storage actor."""
        health = await self.handle.call("health")
        os.kill(health["storage"]["pid"], signal.SIGKILL)

    async def repair(self) -> None:
        """Do nothing: the Supervisor has made another one."""


@asynccontextmanager
async def _in_process(sections: dict[str, Any], step_s: float) -> AsyncIterator[ServedInProcess]:
    build: Any = partial(build_model, layout=LAYOUT, step_s=step_s)
    async with in_process_engine(load_config(sections), build) as engine:
        yield ServedInProcess(engine)


@asynccontextmanager
async def _on_ray(sections: dict[str, Any], step_s: float, name: str) -> AsyncIterator[ServedOnRay]:
    build: Any = partial(build_model, layout=LAYOUT, step_s=step_s)
    handle = await asyncio.to_thread(start_engine, load_config(sections), name, None, None, build)
    try:
        async with await AsyncLLM.connect(name) as llm:
            yield ServedOnRay(handle, llm)
    finally:
        await handle.shutdown()


@asynccontextmanager
async def without_l3(beside: Served, sections: Sections, step_s: float) -> AsyncIterator[Served]:
    """The same kind of engine without L3."""
    plain = sections(None, PAGE_BYTES)
    engine = (
        _on_ray(plain, step_s, "without-l3") if beside.is_on_ray else _in_process(plain, step_s)
    )
    async with engine as served:
        yield served


@asynccontextmanager
async def _faking(
    sections: Sections, step_s: float, latency_s: float, *, broken: Faults
) -> AsyncIterator[tuple[Served, FaultyStorage]]:
    async with _in_process(
        sections({"backend": "fake", "latency_s": latency_s}, PAGE_BYTES), step_s
    ) as served:
        storage = served.engine.spawner.latest(ActorKind.STORAGE)
        assert storage is not None
        backend = storage.plain.backend
        assert isinstance(backend, FakeBackend)

        faults = FakeFaults(backend, Faults(latency_s=latency_s), broken)
        try:
            yield served, faults
        finally:
            await faults.repair()


@asynccontextmanager
async def _stopped(
    sections: Sections, step_s: float, latency_s: float
) -> AsyncIterator[tuple[Served, FaultyStorage]]:
    server = RedisServer()
    try:
        async with _in_process(
            sections({"backend": "redis", "url": server.url}, PAGE_BYTES), step_s
        ) as served:
            try:
                yield served, StoppedServer(server)
            finally:
                server.resume()
    finally:
        server.kill()


@asynccontextmanager
async def _killed(
    sections: Sections, step_s: float, latency_s: float
) -> AsyncIterator[tuple[Served, FaultyStorage]]:
    with tempfile.TemporaryDirectory(prefix="raydix-benchmark-") as folder:
        async with _on_ray(
            sections({"backend": "file", "path": folder}, PAGE_BYTES), step_s, "with-l3"
        ) as served:
            yield served, KilledActor(served.handle)


StartFaulty = Callable[
    [Sections, float, float], AbstractAsyncContextManager[tuple[Served, FaultyStorage]]
]
"""Starts with the seconds of a step and the latency of a storage that works."""
FAULTS: dict[str, StartFaulty] = {
    "black_hole": partial(_faking, broken=Faults(latency_s=math.inf)),
    "slow": partial(_faking, broken=Faults(latency_s=10.0)),
    "failing": partial(_faking, broken=Faults(latency_s=0.002, failure_fraction=0.3)),
    "full": partial(_faking, broken=Faults(latency_s=0.002, refuses_writes=True)),
    "stopped": _stopped,
    "killed": _killed,
}
