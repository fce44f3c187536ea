"""Where the log of all actors of an engine comes together, and is fetched from."""

import asyncio
import contextlib
import itertools
import logging
import os
import socket
from collections import deque
from typing import Any

from raydix.runtime.messages.log_line import LogLine
from raydix.runtime.phases import Phase

logger = logging.getLogger(__name__)

MAX_LINES = 2000
_MAX_ANSWER_LINES = 200
_PACKET_BYTES = 1 << 18
_BURST_LINES = 64
"""Taken in a row; the loop has more to do than to listen to who does not stop talking."""
_SOCKET = "logs.sock"


class LatestLines:
    """Owns: the last lines of a log, which count from 0."""

    def __init__(self, max_lines: int = MAX_LINES) -> None:
        self._lines: deque[LogLine] = deque(maxlen=max_lines)
        self._num_lines = 0

    @property
    def num_lines(self) -> int:
        """How many there were."""
        return self._num_lines

    def add(self, line: LogLine) -> None:
        """Add a line; the oldest one makes room."""
        self._lines.append(line)
        self._num_lines += 1

    def since(self, number: int, max_lines: int) -> tuple[int, list[LogLine]]:
        """Some lines from this number on, and the number of the first of them.

        It is larger than `number` if older ones are gone.
        """
        first = max(number, self._num_lines - len(self._lines))
        begin = first - (self._num_lines - len(self._lines))
        return first, list(self._lines)[begin : begin + max_lines]


class LogDesk:
    """Owns: the socket to which actors send their log, and its latest lines."""

    def __init__(self, folder: str) -> None:
        """`folder`: a private one: who may write there is believed."""
        self.path = os.path.join(folder, _SOCKET)
        """Where `send_log` of the actors sends to."""
        self._lines = LatestLines()
        self._came = asyncio.Event()
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

    async def next_lines(self, number: int) -> dict[str, Any]:
        """Lines from this number on, once there are any.

        `first` is the number of the first one: larger if older ones were dropped meanwhile.
        """
        while self._lines.num_lines <= number:
            self._came.clear()
            await self._came.wait()
        first, lines = self._lines.since(number, _MAX_ANSWER_LINES)
        return {"first": first, "lines": [line.to_values() for line in lines]}

    def phases(self) -> tuple[Phase, ...]:
        """The phases that its latest lines tell of."""
        _, lines = self._lines.since(0, MAX_LINES)
        return tuple(
            Phase(
                actor=line.actor,
                what=line.text.rpartition(" in ")[0],
                began_s=line.time_s - line.took_s,
                ended_s=line.time_s,
            )
            for line in lines
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
                    self._lines.add(LogLine.decode(data))
                except ValueError as error:
                    logger.warning("a line of the log cannot be read: %s", error)
                self._came.set()
                # What has come already is received without a wait.
                if num_taken % _BURST_LINES == 0:
                    await asyncio.sleep(0)

    def _add_task(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
