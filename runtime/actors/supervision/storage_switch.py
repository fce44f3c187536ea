"""Which storage backend an engine uses, and how it changes while requests run."""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Mapping
from typing import Any, Protocol, TypeVar

from raydix.errors import ConfigError, EngineDead, RaydixError
from raydix.runtime.actors.patience import within
from raydix.runtime.actors.supervision.attached_storage import AttachedStorage
from raydix.runtime.actors.supervision.restarts import Supervision
from raydix.runtime.actors.supervision.spawn import RunningActor
from raydix.runtime.config.l3 import L3Section
from raydix.runtime.storage.last_error import ErrorLog, LastError, join_errors

logger = logging.getLogger(__name__)

T = TypeVar("T")


class SwitchedEngine(Protocol):
    """The engine whose backend is switched, as the switch needs it."""

    async def make_storage(self, number: int, incarnation: int) -> RunningActor:
        """Start an incarnation of storage actor `number`; two numbers may live at once."""

    async def open_storage(self, actor: RunningActor, section: L3Section) -> None:
        """Let the actor open its backend. Raises ConfigError if that cannot work."""

    async def tell_host(self, method: str, *arguments: Any) -> Any:
        """Call HostMemory, whichever incarnation answers."""


class StorageSwitch:
    """Owns: which L3 backend the engine uses, if any."""

    def __init__(self, engine: SwitchedEngine, supervision: Supervision) -> None:
        self._engine = engine
        self._supervision = supervision
        self._num_attached = 0
        self._switching = asyncio.Lock()
        self._storages: list[AttachedStorage] = []
        """The storage actors that may have a process."""
        self.current: AttachedStorage | None = None
        self._has_ended = False
        self._retrying: asyncio.Task[None] | None = None
        """The task that tries again while the engine goes on without a backend that was given up.
        """
        self._errors: dict[str, ErrorLog] = {}
        """Why each backend's actor ended or could not be used, by backend."""

    def start(self, section: L3Section) -> None:
        """Use this backend from the engine's start on."""
        self.current = self._attached(section)
        self.current.serve()
        self.current.start()

    async def attach(self, section: L3Section) -> str | None:
        """Open this backend, leave the one in use, then use the new one.

        Returns the name of the one that was left; None if there was none.

        Raises ConfigError if the backend cannot work, EngineDead if it is not kept or HostMemory
        does not answer in time; then the engine goes on with the backend that it had.
        """
        async with self._switching:
            if self._has_ended:
                raise EngineDead("the engine ends")

            wanted = None if self.current is None else self.current.section
            try:
                name = await self._switch_to(section)
                wanted = section
            finally:
                # It was given up meanwhile, when `_lose` left it to the switch what comes next.
                if self.current is None and wanted is not None:
                    self._try_later(wanted)
            return name

    async def _switch_to(self, section: L3Section) -> str | None:
        storage = self._attached(section)
        storage.start()
        try:
            await self._open(storage)
        except BaseException:
            await storage.end()
            raise

        former = self.current
        try:
            name = await self._retire()
            self.current = storage
            storage.serve()
            await self._meet_host(storage)
        except BaseException as error:
            await self._go_back(former, error)
            raise
        return name

    async def _open(self, storage: AttachedStorage) -> None:
        timeout_s = self._supervision.open_timeout_s
        try:
            await within(timeout_s, storage.opened())
        except TimeoutError:
            backend = storage.section.backend
            error = ConfigError(
                f"cache.l3: the backend {backend} was not open after {timeout_s:g} s. "
                "See whether its service answers at the address that is configured."
            )
            self._errors[backend].note(error)
            raise error from None

    async def _meet_host(self, storage: AttachedStorage) -> None:
        """Return once HostMemory uses the backend."""
        await self._bounded(
            storage.serving(), f"the storage backend {storage.section.backend} did not serve"
        )
        await self._bounded(
            storage.unless_given_up(self._engine.tell_host("wait_storage")),
            f"HostMemory did not meet the storage backend {storage.section.backend}",
        )

    async def _go_back(self, former: AttachedStorage | None, error: BaseException) -> None:
        """Use again what was in use before a switch that failed."""
        backend = "none" if former is None else former.section.backend
        logger.error("the storage backend is not changed and stays %s: %s", backend, error)
        await self._end_all()
        self.current = None
        if self._has_ended:
            return
        if former is None:
            try:
                await self._forget()
            except RaydixError as also:
                # It goes on without, as no storage actor connects to it.
                logger.error("HostMemory was not told that there is no storage: %s", also)
            return

        # A new actor in any case: HostMemory may have stopped giving orders to the old one.
        self.current = self._attached(former.section)
        self.current.start_again()

    async def _bounded(self, work: Coroutine[Any, Any, T], what: str, *, more_s: float = 0.0) -> T:
        """Do `work`, within a bound because the switch is locked. Raises EngineDead past it."""
        timeout_s = self._supervision.open_timeout_s + more_s
        try:
            return await within(timeout_s, work)
        except TimeoutError:
            raise EngineDead(f"{what} within {timeout_s:g} s") from None

    async def met(self) -> None:
        """Return once HostMemory uses the backend in use, or there is none.

        Raises ConfigError if it cannot work, EngineDead if it was given up or the engine ends.
        """
        while (storage := self.current) is not None:
            try:
                await storage.serving()
                await storage.unless_given_up(self._engine.tell_host("wait_storage"))
            except RaydixError:
                if self._has_ended or not storage.was_left:
                    raise
                # It is being left: what is used instead is known at the end of the switch.
                async with self._switching:
                    continue
            return

    async def detach(self) -> str | None:
        """Leave the backend in use. Returns its name; None if there is none."""
        async with self._switching:
            if self._retrying is not None:
                self._retrying.cancel()
            former = self.current
            try:
                return await self._retire()
            except BaseException as error:
                await self._go_back(former, error)
                raise

    def last_errors(self, figures: Mapping[str, Any] | None) -> dict[str, LastError]:
        """The last error of each backend that has had one: its store's or its actor's.

        `figures`: those of the storage actor in use, which knows of its store's; None if none is.
        """
        errors = {backend: log.last for backend, log in self._errors.items()}
        if figures is not None and figures["last_error"] is not None:
            backend, own = figures["backend"], LastError.from_values(figures["last_error"])
            errors[backend] = join_errors(own, errors.get(backend))
        return {backend: error for backend, error in errors.items() if error is not None}

    async def end(self) -> None:
        """End all actors now: of the backend in use, and of one that is being attached."""
        self._has_ended = True
        if self._retrying is not None:
            self._retrying.cancel()
            await asyncio.gather(self._retrying, return_exceptions=True)
        await self._end_all()

    async def _end_all(self) -> None:
        await asyncio.gather(*(storage.end() for storage in self._storages))

    def _attached(self, section: L3Section) -> AttachedStorage:
        self._num_attached += 1
        number = self._num_attached

        async def make(incarnation: int) -> RunningActor:
            return await self._engine.make_storage(number, incarnation)

        storage = AttachedStorage(
            section,
            make,
            self._engine.open_storage,
            on_end=self._errors.setdefault(section.backend, ErrorLog()).note,
            on_failure=self._lose,
            supervision=self._supervision,
        )
        self._storages = [each for each in self._storages if not each.has_ended]
        self._storages.append(storage)
        return storage

    async def _retire(self) -> str | None:
        """Let what is under way end, within a bound, then the actor; then HostMemory has no L3."""
        storage = self.current
        if storage is None:
            return None
        drain_s = self._supervision.drain_timeout_s
        what = f"HostMemory did not leave the storage backend {storage.section.backend}"
        if not await self._bounded(
            self._engine.tell_host("retire_storage", drain_s), what, more_s=drain_s
        ):
            logger.warning("%s is left with operations under way", storage.section.backend)
        await self._keep_last_error(storage)
        await storage.end()
        await self._forget()
        return storage.section.backend

    async def _keep_last_error(self, storage: AttachedStorage) -> None:
        """Keep what an actor's store has said, which would go with the actor."""
        actor = storage.keeper.actor
        if actor is None:
            return
        with contextlib.suppress(EngineDead, TimeoutError):
            last = await within(self._supervision.open_timeout_s, actor.call("last_error"))
            if last is not None:
                self._errors[storage.section.backend].take_over(LastError.from_values(last))

    async def _lose(self, storage: AttachedStorage) -> None:
        """Lose an actor: the engine goes on without L3, and tries it again later."""
        if self.current is not storage:
            return
        # Whoever switches knows at the end what is to be used: this, another one or none.
        if not self._switching.locked():
            # Before anything is waited for, so that who detaches meanwhile finds it.
            self._try_later(storage.section)
        try:
            await self._forget()
        except RaydixError as error:
            logger.error("HostMemory was not told that there is no storage: %s", error)

    def _try_later(self, section: L3Section) -> None:
        """Let a task try again the backend that is wanted, in place of what one tries so far."""
        if self._has_ended:
            return
        if self._retrying is not None:
            self._retrying.cancel()
        self._retrying = asyncio.create_task(self._retry(section))

    async def _retry(self, section: L3Section) -> None:
        """Use a backend that was given up once it works again, unless another is used by then."""
        log, retry_s = self._errors[section.backend], self._supervision.storage_retry_s
        while True:
            cause = "it ended too often" if log.last is None else log.last.text
            log.note(f"given up, and tried again after {retry_s:g} s: {cause}", num_errors=0)
            await asyncio.sleep(retry_s)
            async with self._switching:
                if self.current is not None or self._has_ended:
                    return
                try:
                    await self._switch_to(section)
                except RaydixError as error:
                    logger.warning(
                        "the storage backend %s is still no use: %s", section.backend, error
                    )
                # It may be given up again before the switch has ended.
                if self.current is not None:
                    return

    async def _forget(self) -> None:
        # First, so that a HostMemory which starts just now knows it.
        self.current = None
        await self._bounded(
            self._engine.tell_host("detach_storage"),
            "HostMemory did not let go of its storage backend",
        )
