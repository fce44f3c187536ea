"""The actor that publishes KV events: it follows the Scheduler and speaks ZMQ."""

import asyncio
import importlib.util
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from raydix.errors import AccountingError, ConfigError
from raydix.runtime.actors.kv_sockets import KvSockets, read_certificate
from raydix.runtime.actors.links.link import Link, LinkClosed, LinkRefused
from raydix.runtime.actors.links.socket_dialer import connect
from raydix.runtime.actors.metrics_export import MetricsExporter
from raydix.runtime.actors.process import exit_process
from raydix.runtime.cache.kv_publication import Publication, Told
from raydix.runtime.cache.kv_wire import AllBlocksCleared, WireEvent, encode_batch
from raydix.runtime.config.events import EventsSection
from raydix.runtime.config.kv_layout import KvLayout
from raydix.runtime.messages.hello import Hello, Role
from raydix.runtime.messages.kv_events import KvNews

logger = logging.getLogger(__name__)

_RETRY_S = 0.05
_HEARTBEAT_S = 1.0
"""The time after which a stream without events has a batch of none, whose number tells subscribers
whether they have missed any.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPublisherSetup:
    """What a publisher starts with."""

    section: EventsSection
    layout: KvLayout
    num_lanes: int
    scheduler_address: str
    secret: bytes = field(repr=False)


class KvPublisherActor:
    """Owns: the streams of events, one per lane, and the link to the Scheduler that it follows.

    Nobody waits for it. A Scheduler that does not get rid of its news closes the link, and tells
    all that there is over the next one.
    """

    def __init__(
        self,
        *,
        name: str,
        incarnation: int,
        on_fatal: Callable[[], None] = exit_process,
        exporter: MetricsExporter | None = None,
    ) -> None:
        self._name, self._incarnation = name, incarnation
        self._on_fatal = on_fatal
        self._publication: Publication | None = None
        self._streams: list[KvSockets] = []
        self._close_context: Callable[[], None] = lambda: None
        self._tasks: list[asyncio.Task[None]] = []
        self._num_batches = self._num_links = 0
        self._quiet_lanes: set[int] = set()
        """The lanes of which nothing was published since the last heartbeat."""

    def __repr__(self) -> str:
        return f"KvPublisher({self._name}, incarnation {self._incarnation})"

    async def start(self, setup: KvPublisherSetup) -> None:
        """Bind and follow the Scheduler, whenever it is there. Raises ConfigError if it cannot."""
        if importlib.util.find_spec("zmq") is None:
            raise ConfigError(
                "cache.events needs pyzmq. Install it with pip install 'raydix[events]', or set "
                "cache.events to null."
            )
        self._publication = Publication(setup.layout)
        self._open_streams(setup)
        # Whatever a publisher before this one has told is void.
        for lane in range(setup.num_lanes):
            await self._publish(lane, [AllBlocksCleared()])
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(stream.answer()) for stream in self._streams]
        self._tasks.append(loop.create_task(self._follow(setup)))
        self._tasks.append(loop.create_task(self._beat()))
        for task in self._tasks:
            task.add_done_callback(self._note_end)
        for lane, stream in enumerate(self._streams):
            logger.info(
                "KV events of rank %d are published at %s, and again at %s",
                lane,
                stream.endpoint,
                stream.replay_endpoint,
            )

    def _open_streams(self, setup: KvPublisherSetup) -> None:
        import zmq.asyncio
        import zmq.auth.asyncio

        certificate = read_certificate(setup.section)
        context = zmq.asyncio.Context()
        self._close_context = context.term
        if certificate is not None:
            authenticator = zmq.auth.asyncio.AsyncioAuthenticator(context)
            authenticator.start()
            authenticator.configure_curve(domain="*", location=f"{setup.section.curve}/clients")

            def close() -> None:
                authenticator.stop()
                context.term()

            self._close_context = close
        for lane in range(setup.num_lanes):
            self._streams.append(
                KvSockets(context, setup.section, certificate, lane, self._snapshot)
            )

    def stats(self) -> dict[str, Any]:
        """Where events are published, and how many batches were."""
        return {
            "endpoints": [stream.endpoint for stream in self._streams],
            "replay_endpoints": [stream.replay_endpoint for stream in self._streams],
            "batches": self._num_batches,
            "links": self._num_links,
            "incarnation": self._incarnation,
        }

    async def stop(self) -> None:
        """Close the link and all sockets."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for stream in self._streams:
            stream.close()
        self._close_context()

    async def _follow(self, setup: KvPublisherSetup) -> None:
        """Follow whichever Scheduler listens at the address."""
        own = Hello(
            role=Role.FOLLOWER, name=self._name, incarnation=self._incarnation, pid=os.getpid()
        )
        while True:
            try:
                link = await connect(setup.scheduler_address, own, setup.secret)
            except LinkRefused:
                await asyncio.sleep(_RETRY_S)
                continue
            except LinkClosed:
                continue
            self._num_links += 1
            try:
                await self._hear(link)
            except LinkClosed as closed:
                logger.info("the link to the Scheduler is lost (%s) and dialled again", closed)
            except AccountingError:
                logger.exception("the Scheduler's news does not fit together; it is asked anew")
                await asyncio.sleep(_RETRY_S)
            finally:
                link.close()

    async def _hear(self, link: Link) -> None:
        """Publish what the Scheduler tells. Raises LinkClosed, AccountingError."""
        assert self._publication is not None, "it has started"
        self._publication.begin()
        while True:
            message = await link.receive()
            if not isinstance(message, KvNews):
                raise LinkClosed(f"{link.hello} sends a {type(message).__name__}")
            told = self._publication.follow(message)
            for lane in range(len(self._streams)):
                events = _of_lane(told, lane)
                if events:
                    await self._publish(lane, events)

    async def _beat(self) -> None:
        while True:
            self._quiet_lanes = set(range(len(self._streams)))
            await asyncio.sleep(_HEARTBEAT_S)
            for lane in tuple(self._quiet_lanes):
                await self._publish(lane, [])

    async def _publish(self, lane: int, events: list[WireEvent]) -> None:
        self._num_batches += 1
        self._quiet_lanes.discard(lane)
        await self._streams[lane].publish(encode_batch(events, time.time(), lane))

    def _snapshot(self, lane: int) -> bytes:
        """All that a lane's subscribers know who have missed nothing, as one batch."""
        assert self._publication is not None, "it has started"
        events = [AllBlocksCleared(), *self._publication.state(lane)]
        return encode_batch(events, time.time(), lane)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("KV events cannot be published any more", exc_info=error)
            self._on_fatal()


def _of_lane(told: list[Told], lane: int) -> list[WireEvent]:
    return [each.event for each in told if each.lane in (lane, None)]
