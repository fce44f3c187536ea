"""Actors as plain objects on one event loop: an `EngineSpawner` without Ray, for tests."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any

from raydix.errors import EngineDead
from raydix.runtime.actors.gpu import GpuActor
from raydix.runtime.actors.gpu_model import BuildModel
from raydix.runtime.actors.kv_publisher import KvPublisherActor
from raydix.runtime.actors.scheduler import SchedulerActor
from raydix.runtime.actors.storage import StorageActor
from raydix.runtime.actors.supervision.node_memory import NodeMemoryActor
from raydix.runtime.actors.supervision.spawn import ActorKind, RunningActor
from raydix.runtime.actors.torch_builder import build_torch_model
from raydix.runtime.testing.peers import InProcessPeers

logger = logging.getLogger(__name__)

Stop = Callable[[], Awaitable[None]]


class InProcessActor:
    """One incarnation of an actor, on the loop that made it; its threads are its own.

    A kill is a clean stop: this process cannot be killed in part. Processes that are waited for in
    HostMemory's quarantine never end here, so this is no place to test the death of a GPU actor.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None
        self.plain: Any = None
        """The object itself."""
        self._stop: Stop | None = None

    def bind(self, actor: object, stop: Stop) -> None:
        """Tell which object this is. Called once; the object calls `fail` when it cannot go on."""
        self.plain = actor
        self._stop = stop

    @property
    def pid(self) -> int:
        """The id of this process, in which the actor lives."""
        return os.getpid()

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call the plain object's method, and wait for what it awaits."""
        result = getattr(self.plain, method)(*arguments)
        if not isinstance(result, Awaitable):
            return result

        doing = asyncio.ensure_future(result)
        ended = asyncio.create_task(self._ended.wait())
        try:
            await asyncio.wait({doing, ended}, return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                return doing.result()
            raise EngineDead(f"{self._name} ended during {method}")
        finally:
            doing.cancel()
            ended.cancel()

    async def ping(self) -> None:
        """Return once the event loop has had a turn."""
        await asyncio.sleep(0)

    async def wait_ended(self) -> None:
        """Return once the actor has been ended."""
        await self._ended.wait()

    def kill(self) -> None:
        """End the actor soon, once."""
        if self._stopping is None:
            self._stopping = self._loop.create_task(self._end())

    def release(self) -> None:
        """End the actor soon: nobody shares it."""
        self.kill()

    def fail(self) -> None:
        """The actor cannot go on, which it has logged. Called from any thread."""
        self._loop.call_soon_threadsafe(self.kill)

    async def _end(self) -> None:
        try:
            if self._stop is not None:
                await self._stop()
        except Exception:  # the end of an actor: whatever fails here, nobody may wait for it
            logger.exception("%s did not stop cleanly", self._name)
        finally:
            self._ended.set()


class InProcessSpawner:
    """Makes actors in this process and knows the latest of each kind.

    `build_model`: what GPU actors drive. `peers`: by what HostMemories of several spawners find
    each other; None: they do not.
    """

    def __init__(
        self, build_model: BuildModel = build_torch_model, peers: InProcessPeers | None = None
    ) -> None:
        self._build_model = build_model
        self._peers = peers or InProcessPeers()
        self._latest: dict[ActorKind, InProcessActor] = {}

    def latest(self, kind: ActorKind) -> InProcessActor | None:
        """The actor of this kind that was made last."""
        return self._latest.get(kind)

    @property
    def node(self) -> None:
        """No engine in this process shares its L2."""
        return None

    async def spawn_l2(
        self, name: str, _size_bytes: int, /, *, log_path: str, **arguments: Any
    ) -> RunningActor:
        """Make the plain object of an L2."""
        running = self._latest[ActorKind.HOST_MEMORY] = InProcessActor(name)
        l2 = NodeMemoryActor(
            **arguments,
            spawner=self,
            finder=self._peers,
            log_path=log_path,
            on_fatal=running.fail,
        )
        self._peers.add(l2.host)
        running.bind(l2, l2.stop)
        return running

    async def find_l2(self, _name: str, _pid: int, /, *, log_path: str) -> None:
        """None: no L2 is found without a node."""
        return None

    async def spawn(
        self, kind: ActorKind, name: str, /, *, log_path: str, **arguments: Any
    ) -> RunningActor:
        """Make the plain object of an actor; what it logs stays in this process."""
        running = self._latest[kind] = InProcessActor(name)

        match kind:
            case ActorKind.SCHEDULER:
                scheduler = SchedulerActor(**arguments, on_fatal=running.fail)
                running.bind(scheduler, scheduler.stop)
            case ActorKind.STORAGE:
                storage = StorageActor(**arguments, on_fatal=running.fail)
                running.bind(storage, storage.stop)
            case ActorKind.EVENTS:
                events = KvPublisherActor(**arguments, on_fatal=running.fail)
                running.bind(events, events.stop)
            case ActorKind.GPU:
                gpu = GpuActor(**arguments, build_model=self._build_model, on_fatal=running.fail)
                running.bind(gpu, gpu.shutdown)
            case ActorKind.HOST_MEMORY:
                raise ValueError("L2 is made by `spawn_l2`")
            case ActorKind.SUPERVISOR:
                raise ValueError("a Supervisor is made by whom it serves")
        return running
