"""The storage actor of one backend, across its incarnations."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from raydix.errors import EngineDead, RaydixError
from raydix.runtime.actors.supervision.keeper import Keeper, Make
from raydix.runtime.actors.supervision.restarts import Supervision
from raydix.runtime.actors.supervision.spawn import ActorKind, RunningActor
from raydix.runtime.config.l3 import L3Section

logger = logging.getLogger(__name__)

T = TypeVar("T")


class AttachedStorage:
    """Owns: the storage actor of one backend across its incarnations.

    The backend is opened first, which shows whether it works; it serves once `serve` has been
    called.
    """

    def __init__(
        self,
        section: L3Section,
        make: Make,
        open_backend: Callable[[RunningActor, L3Section], Awaitable[None]],
        *,
        on_end: Callable[[Exception], None],
        on_failure: Callable[["AttachedStorage"], Awaitable[None]],
        supervision: Supervision,
    ) -> None:
        """`on_end` is told why an incarnation of the actor has ended, if that was not meant.

        `on_failure` is called when it has ended too often to be restarted.
        """
        self.section = section
        self._open_backend = open_backend
        self._on_failure = on_failure

        self._opened = asyncio.Event()
        self._may_serve = asyncio.Event()
        label = ActorKind.STORAGE.value
        self.keeper = Keeper(
            label,
            make,
            self._bring_up,
            on_end=lambda _, error: None if error is None else on_end(error),
            supervision=supervision,
        )
        self._task: asyncio.Task[None] | None = None

    @property
    def has_ended(self) -> bool:
        """Whether it was ended or given up."""
        return self._task is not None and self._task.done()

    def start(self) -> None:
        """Start the actor and keep it until `end`."""
        self._task = asyncio.create_task(self._keep())

    def start_again(self) -> None:
        """Start the actor of a backend that served before; nobody waits for it to open."""
        self._opened.set()
        self.serve()
        self.start()

    async def opened(self) -> None:
        """Return once the backend has been opened. Raises ConfigError if it cannot work."""
        await self.unless_given_up(self._opened.wait())

    def serve(self) -> None:
        """HostMemory may use the backend, through this and all later incarnations of the actor."""
        self._may_serve.set()

    async def serving(self) -> RunningActor:
        """The actor, once it serves.

        Raises ConfigError if the backend cannot work, EngineDead if it was given up.
        """
        try:
            return await self.unless_given_up(self.keeper.serving())
        except EngineDead as error:
            raise EngineDead(
                f"the storage backend {self.section.backend} was given up: {error}"
            ) from error

    @property
    def was_left(self) -> bool:
        """Whether `end` was called: it has not failed."""
        return self._task is not None and self._task.cancelled()

    async def end(self) -> None:
        """End the actor and return once its process has ended."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def unless_given_up(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work`, which waits for the backend.

        Raises ConfigError if the backend cannot work, EngineDead if it has ended.
        """
        assert self._task is not None, "it has been started"
        doing = asyncio.create_task(work)
        try:
            await asyncio.wait({doing, self._task}, return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                return doing.result()

            # It has ended: with the error that made it end, if there was one.
            if not self._task.cancelled():
                self._task.result()
            raise EngineDead(
                f"the storage backend {self.section.backend} was given up, or the engine ends"
            )
        finally:
            doing.cancel()
            await asyncio.gather(doing, return_exceptions=True)

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
        # One that has served is used again once it answers.
        if not self._opened.is_set() and not self.section.lazy:
            await actor.call("require_answer")
        self._opened.set()
        await self._may_serve.wait()
        await actor.call("serve")
