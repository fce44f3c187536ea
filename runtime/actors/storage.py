"""The storage actor: a shell around `StorageWorker`, with a link to HostMemory."""

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from raydix.errors import AccountingError
from raydix.runtime.actors.links.link import Link, LinkClosed, LinkRefused
from raydix.runtime.actors.links.socket_dialer import connect
from raydix.runtime.actors.metrics_export import MetricsExporter
from raydix.runtime.actors.process import exit_process
from raydix.runtime.actors.storage_metrics import STORAGE_METRICS
from raydix.runtime.config.l3 import L3Section
from raydix.runtime.messages.hello import Hello, Role
from raydix.runtime.messages.host import (
    AskExists,
    CancelBatch,
    DeleteObjects,
    ObjectsDone,
    ReadObjects,
    WriteObjects,
)
from raydix.runtime.metrics import read_samples
from raydix.runtime.storage.backend import StorageBackend
from raydix.runtime.storage.create import create_backend
from raydix.runtime.storage.namespace import Namespace
from raydix.runtime.storage.worker import ANSWER_S, StorageWorker
from raydix.runtime.tiers.host_arena import ArenaLocation, HostArena

logger = logging.getLogger(__name__)

_RETRY_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSetup:
    """What a storage actor starts with."""

    backend: L3Section
    namespace: Namespace
    arena: ArenaLocation
    host_address: str
    secret: bytes


class StorageActor:
    """Owns: the node's `StorageWorker` and the link to HostMemory.

    Keeps nothing that its next incarnation would miss.
    """

    def __init__(
        self,
        *,
        name: str,
        incarnation: int,
        on_fatal: Callable[[], None] = exit_process,
        exporter: MetricsExporter | None = None,
    ) -> None:
        self._name = name
        self._incarnation = incarnation
        self._exporter = exporter
        self._on_fatal = on_fatal

        self._arena: HostArena | None = None
        self._setup: StorageSetup | None = None
        self._worker: StorageWorker | None = None
        self._link: Link | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"Storage({self._name}, incarnation {self._incarnation})"

    async def start(self, setup: StorageSetup) -> None:
        """Map the arena and open the backend. Raises ConfigError if the backend cannot work."""
        self._loop = asyncio.get_running_loop()
        self._arena = HostArena.attach(setup.arena)
        backend = create_backend(setup.backend)
        self._worker = await asyncio.to_thread(
            StorageWorker, backend, self._arena, setup.namespace, self._on_done
        )
        self._setup = setup

    async def require_answer(self) -> None:
        """Return if the backend's server answers. Raises ConfigError that says why it does not."""
        if self._worker is None:
            raise AccountingError("storage is asked for an answer before its start")
        await asyncio.to_thread(self._worker.require_answer, ANSWER_S)

    async def serve(self) -> None:
        """Connect to HostMemory and carry out its orders."""
        if self._worker is None or self._setup is None:
            raise AccountingError("storage is to serve before its start")
        self._task = asyncio.create_task(self._follow_host(self._setup, self._worker))
        if self._exporter is not None:
            labels = (self._setup.backend.backend,)
            self._exporter.start(lambda: read_samples(STORAGE_METRICS, self.stats(), labels))

    @property
    def backend(self) -> StorageBackend:
        """What objects are stored in. Raises AccountingError before `start`."""
        if self._worker is None:
            raise AccountingError("storage has no backend before its start")
        return self._worker.backend

    def last_error(self) -> dict[str, Any] | None:
        """The backend's last error, as plain values; None if there was none."""
        last = None if self._worker is None else self._worker.last_error()
        return None if last is None else last.to_values()

    def stats(self) -> dict[str, Any]:
        """The worker's and the backend's figures."""
        if self._worker is None or self._setup is None:
            raise AccountingError("storage is asked for figures before its start")
        own = {
            "backend": self._setup.backend.backend,
            "incarnation": self._incarnation,
            "last_error": self.last_error(),
        }
        return {**self._worker.stats(), **own}

    async def stop(self) -> None:
        """Finish what is under way, close the backend and the arena."""
        if self._exporter is not None:
            await self._exporter.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._worker is not None:
            await asyncio.to_thread(self._worker.close)
        if self._arena is not None:
            self._arena.close()

    async def _follow_host(self, setup: StorageSetup, worker: StorageWorker) -> None:
        """Stay connected to whichever HostMemory listens at the address.

        Each one finds nothing under way that an earlier one ordered.
        """
        own = Hello(
            role=Role.STORAGE,
            name=setup.backend.backend,
            incarnation=self._incarnation,
            pid=os.getpid(),
        )

        try:
            while True:
                try:
                    link = await connect(setup.host_address, own, setup.secret)
                except LinkRefused:
                    await asyncio.sleep(_RETRY_S)
                    continue
                except LinkClosed:
                    continue

                logger.info("linked to HostMemory")
                await self._serve(link, worker)
                await asyncio.to_thread(worker.quiesce)
        except Exception:
            logger.exception("the storage actor cannot go on")
            self._on_fatal()

    async def _serve(self, link: Link, worker: StorageWorker) -> None:
        self._link = link
        try:
            while True:
                message = await link.receive()
                if not isinstance(
                    message,
                    AskExists | ReadObjects | WriteObjects | DeleteObjects | CancelBatch,
                ):
                    logger.warning("%s sends a %s", link.hello, type(message).__name__)
                    break

                worker.submit(message)
        except LinkClosed as closed:
            logger.info("the link to HostMemory is lost (%s) and dialled again", closed)
        finally:
            self._link = None
            link.close()

    def _on_done(self, done: ObjectsDone) -> None:
        """Called from the worker's threads."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._answer, done)

    def _answer(self, done: ObjectsDone) -> None:
        """Tell whichever HostMemory is connected; one that did not order the batch ignores it."""
        if self._link is None:
            return
        try:
            self._link.send(done)
        except LinkClosed:
            logger.warning("HostMemory does not read; its link is closed")
