"""Where the log of all actors of an engine comes together, and is fetched from."""

import asyncio
import contextlib
import itertools
import logging
import os
import socket
from typing import Any

from raydix.runtime.actors.supervision.log_feed import LogFeed
from raydix.runtime.messages.log_line import LogLine
from raydix.runtime.phases import Phase

logger = logging.getLogger(__name__)

_PACKET_BYTES = 1 << 18
_BURST_LINES = 64
"""Taken in a row; the loop has more to do than to listen to who does not stop talking."""
_SOCKET = "logs.sock"


class LogDesk:
    """Owns: the socket to which actors send their log."""

    def __init__(self, folder: str) -> None:
        """`folder`: a private one: who may write there is believed."""
        self.path = os.path.join(folder, _SOCKET)
        """Where `send_log` of the actors sends to."""
        self.feed = LogFeed()
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Take lines from now on."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(self.path)
        listener.listen()
        listener.setblocking(False)
        self._add_task(self._accept(listener))

    async def close(self) -> None:
        """Take no more lines. May be called twice, and before `open`."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def phases(self) -> tuple[Phase, ...]:
        """The phases that its latest lines tell of."""
        return tuple(
            Phase(
                actor=line.actor,
                what=line.text.rpartition(" in ")[0],
                began_s=line.time_s - line.took_s,
                ended_s=line.time_s,
            )
            for line in self.feed.latest
            if line.took_s is not None
        )

    async def _accept(self, listener: socket.socket) -> None:
        with listener:
            while True:
                connection, _ = await asyncio.get_running_loop().sock_accept(listener)
                self._add_task(self._take(connection))

    async def _take(self, connection: socket.socket) -> None:
        """Take what one process sends, until it ends."""
        loop = asyncio.get_running_loop()
        with connection, contextlib.suppress(OSError):
            for num_taken in itertools.count(1):
                data = await loop.sock_recv(connection, _PACKET_BYTES)
                if not data:
                    return
                try:
                    self.feed.add(LogLine.decode(data))
                except ValueError as error:
                    logger.warning("a line of the log cannot be read: %s", error)
                # What has come already is received without a wait.
                if num_taken % _BURST_LINES == 0:
                    await asyncio.sleep(0)

    def _add_task(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
