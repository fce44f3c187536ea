"""The storage actor: a shell around `StorageWorker`, with a link to HostMemory."""

import asyncio
import logging
import math
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from raydix.errors import AccountingError
from raydix.runtime.actors.links.blocking_link import BlockingSocketLink, connect_blocking
from raydix.runtime.actors.links.link import LinkClosed
from raydix.runtime.actors.metrics_export import MetricsExporter
from raydix.runtime.actors.process import exit_process
from raydix.runtime.actors.redial import Dial, redial
from raydix.runtime.actors.storage_metrics import STORAGE_METRICS
from raydix.runtime.config.l3 import L3Section
from raydix.runtime.messages.hello import Hello, Role
from raydix.runtime.messages.host import CancelBatch, ObjectsDone
from raydix.runtime.messages.retention import RetainObjects
from raydix.runtime.metrics import read_samples
from raydix.runtime.storage.backend import StorageBackend
from raydix.runtime.storage.create import create_backend
from raydix.runtime.storage.namespace import Namespace
from raydix.runtime.storage.worker.worker import ANSWER_S, Order, StorageWorker, Told
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
    secret: bytes = field(repr=False)


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
        self._link: BlockingSocketLink | None = None
        self._stop = threading.Event()

    def __repr__(self) -> str:
        return f"Storage({self._name}, incarnation {self._incarnation})"

    async def start(self, setup: StorageSetup) -> None:
        """Map the arena and open the backend. Raises ConfigError if the backend cannot work."""
        self._arena = HostArena.attach(setup.arena)
        backend = create_backend(setup.backend)
        self._worker = await asyncio.to_thread(
            StorageWorker, backend, self._arena, setup.namespace, self._answer
        )
        if self._stop.is_set():
            await asyncio.to_thread(self._worker.close)
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
        if self._stop.is_set():
            return
        setup = self._setup
        own = Hello(
            role=Role.STORAGE,
            name=setup.backend.backend,
            incarnation=self._incarnation,
            pid=os.getpid(),
            patience_s=setup.backend.patience_s,
        )
        self._worker.serve(
            self._orders(
                lambda stop: connect_blocking(setup.host_address, own, setup.secret, stop=stop)
            ),
            self._descriptor,
        )
        if self._exporter is not None:
            labels = (setup.backend.backend,)
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
        # Here, on the loop: no `serve` starts threads from now on.
        self._stop.set()
        if self._exporter is not None:
            await self._exporter.stop()
        await asyncio.to_thread(self._end)
        if self._arena is not None:
            self._arena.close()

    def _end(self) -> None:
        # Read once: the thread that reads may clear it meanwhile.
        if (link := self._link) is not None:
            link.close()
        if self._worker is not None:
            self._worker.close()

    def _orders(self, dial: Dial[BlockingSocketLink]) -> Iterator[Told | None]:
        """The orders of each HostMemory that listens at the address, and None where one is gone.

        So each finds nothing under way that an earlier one ordered. Run by the worker's threads.
        """
        try:
            while (link := redial(dial, self._stop, "HostMemory", math.inf)) is not None:
                yield from self._orders_of(link)
                yield None
                # One that hangs up on us at once is not dialled thousands of times a second.
                self._stop.wait(_RETRY_S)
        except Exception:
            logger.exception("the storage actor cannot go on")
            self._on_fatal()

    def _orders_of(self, link: BlockingSocketLink) -> Iterator[Told]:
        self._link = link
        try:
            # A stop that looked for the link just before it was set has not closed it.
            while not self._stop.is_set():
                message = link.receive()
                if not isinstance(message, Order | CancelBatch | RetainObjects):
                    logger.warning("%s sends a %s", link.hello, type(message).__name__)
                    break
                yield message
        except LinkClosed as closed:
            if not self._stop.is_set():
                logger.info("the link to HostMemory is lost (%s) and dialled again", closed)
        finally:
            self._link = None
            link.close()

    def _descriptor(self) -> int | None:
        """The descriptor of the next order; called by the thread that has read the last one."""
        link = self._link
        return None if link is None else link.descriptor()

    def _answer(self, done: ObjectsDone) -> None:
        """Tell the HostMemory that has ordered the batch. Called by the worker's threads."""
        if (link := self._link) is None:
            return
        try:
            link.send(done)
        except LinkClosed:
            logger.info("HostMemory is gone before batch %d was answered", done.batch_id)
