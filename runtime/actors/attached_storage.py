"""Which storage backend an engine uses, and the actor that serves it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from raydix.errors import ConfigError, EngineDead, RaydixError
from raydix.runtime.actors.keeper import Keeper, Make
from raydix.runtime.actors.restarts import Supervision
from raydix.runtime.actors.spawn import ActorKind, RunningActor
from raydix.runtime.config_l3 import L3Section

logger = logging.getLogger(__name__)

T = TypeVar("T")


class StorageSurroundings(Protocol):
    """What a switch needs of the engine around it."""

    async def make_storage(self, number: int, incarnation: int) -> RunningActor:
        """Start the process of an incarnation of storage actor `number`; two numbers may live at once."""

    async def open_storage(self, actor: RunningActor, section: L3Section) -> None:
        """Let the actor open its backend. Raises ConfigError if that cannot work."""

    async def tell_host(self, method: str, *arguments: Any) -> Any:
        """Call HostMemory, whichever incarnation answers."""


class AttachedStorage:
    """Owns: the storage actor of one backend across its incarnations, from the first opening of the backend on.

    The backend is opened first, which shows whether it works; it serves once `serve` has been called.
    """

    def __init__(
        self,
        section: L3Section,
        make: Make,
        open_backend: Callable[[RunningActor, L3Section], Awaitable[None]],
        *,
        on_failure: Callable[["AttachedStorage"], Awaitable[None]],
        supervision: Supervision,
    ) -> None:
        """`on_failure`: called when the actor has ended too often to be made again."""
        self.section = section
        self._open_backend = open_backend
        self._on_failure = on_failure
        self._opened = asyncio.Event()
        self._may_serve = asyncio.Event()
        label = ActorKind.STORAGE.value
        self.keeper = Keeper(label, make, self._bring_up, on_end=lambda: None, supervision=supervision)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Make the actor and keep it until `end`."""
        self._task = asyncio.create_task(self._keep())

    async def opened(self) -> None:
        """Return once the backend has been opened for the first time. Raises ConfigError if it cannot work."""
        await self._unless_given_up(self._opened.wait())

    def serve(self) -> None:
        """HostMemory may use the backend, through this and all later incarnations of the actor."""
        self._may_serve.set()

    async def serving(self) -> RunningActor:
        """The actor, once it serves. Raises ConfigError if the backend cannot work, EngineDead if it is given up."""
        return await self._unless_given_up(self.keeper.serving())

    async def end(self) -> None:
        """End the actor and return once its process has ended."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _unless_given_up(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._task is not None, "it has been started"
        doing = asyncio.create_task(work)
        try:
            await asyncio.wait({doing, self._task}, return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                return doing.result()
            self._task.result()
            raise EngineDead(f"the storage backend {self.section.backend} was given up: its actor ended too often")
        finally:
            doing.cancel()

    async def _keep(self) -> None:
        try:
            await self.keeper.run()
        except RaydixError as error:
            if not self._opened.is_set():
                raise
            logger.error("the storage backend %s is given up: %s", self.section.backend, error)
            await self._on_failure(self)

    async def _bring_up(self, actor: RunningActor, incarnation: int) -> None:
        await self._open_backend(actor, self.section)
        self._opened.set()
        await self._may_serve.wait()
        await actor.call("serve")


class StorageSwitch:
    """Owns: which L3 backend the engine uses, if any."""

    def __init__(self, around: StorageSurroundings, supervision: Supervision) -> None:
        self._around = around
        self._supervision = supervision
        self._num_attached = 0
        self._switching = asyncio.Lock()
        self.current: AttachedStorage | None = None

    def start(self, section: L3Section) -> None:
        """Use this backend from the engine's start on."""
        self.current = self._attached(section)
        self.current.serve()
        self.current.start()

    async def attach(self, section: L3Section) -> str | None:
        """Open this backend, then leave the one in use, then use this one. Returns the name of the one left.

        Raises ConfigError, and changes nothing, if the backend cannot work.
        """
        async with self._switching:
            storage = self._attached(section)
            storage.start()
            try:
                await self._open(storage)
                former = await self._retire()
            except BaseException:
                await storage.end()
                raise
            self.current = storage
            storage.serve()
            await storage.serving()
            await self._around.tell_host("wait_storage")
            return former

    async def _open(self, storage: AttachedStorage) -> None:
        timeout_s = self._supervision.open_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await storage.opened()
        except TimeoutError:
            raise ConfigError(
                f"cache.l3: the backend {storage.section.backend} was not open after {timeout_s:g} s. "
                "See whether its service answers at the address that is configured."
            ) from None

    async def detach(self) -> str | None:
        """Leave the backend in use. Returns its name; None, and nothing happens, if there is none."""
        async with self._switching:
            return await self._retire()

    async def end(self) -> None:
        """End the actor now."""
        if self.current is not None:
            await self.current.end()

    def _attached(self, section: L3Section) -> AttachedStorage:
        self._num_attached += 1
        number = self._num_attached

        async def make(incarnation: int) -> RunningActor:
            return await self._around.make_storage(number, incarnation)

        return AttachedStorage(
            section, make, self._around.open_storage, on_failure=self._lose, supervision=self._supervision
        )

    async def _retire(self) -> str | None:
        """Let what is under way end, within bounds, then the actor; then HostMemory knows of no L3."""
        storage = self.current
        if storage is None:
            return None
        if not await self._around.tell_host("retire_storage", self._supervision.drain_timeout_s):
            logger.warning("%s is left with operations under way", storage.section.backend)
        await storage.end()
        await self._forget()
        return storage.section.backend

    async def _lose(self, storage: AttachedStorage) -> None:
        """The actor cannot be kept: the engine goes on without L3."""
        if self.current is storage:
            await self._forget()

    async def _forget(self) -> None:
        # First, so that a HostMemory which is being made now knows it.
        self.current = None
        await self._around.tell_host("detach_storage")
