"""Frame bodies that arrived at an asyncio end and wait for its reader."""

import asyncio
from collections import deque
from collections.abc import Callable

from raydix.runtime.actors.links.link import LinkClosed


class Inbox:
    """Owns: bodies received and not yet taken. Lives on one loop and has one reader."""

    def __init__(self, on_taken: Callable[[int], None]) -> None:
        """`on_taken` is told the size of each body that the reader takes."""
        self.num_bytes = 0
        self._bodies: deque[bytes] = deque()
        self._on_taken = on_taken
        self._waiter: asyncio.Future[None] | None = None
        self._end: str | None = None

    @property
    def end_reason(self) -> str | None:
        """Why nothing more will come; None while something may."""
        return self._end

    def put(self, body: bytes) -> None:
        """Add a body; after the end it is dropped."""
        if self._end is None:
            self._bodies.append(body)
            self.num_bytes += len(body)
            self._wake()

    def end(self, reason: str) -> None:
        """Nothing more will come; what is here can still be taken. The first reason stays."""
        if self._end is None:
            self._end = reason
            self._wake()

    def drop(self, reason: str) -> None:
        """End, and forget what is here."""
        self._bodies.clear()
        self.num_bytes = 0
        self.end(reason)

    async def take(self) -> bytes:
        """The oldest body. Raises LinkClosed after the last one."""
        while not self._bodies:
            if self._end is not None:
                raise LinkClosed(self._end)
            assert self._waiter is None, "a link has one reader"
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

        body = self._bodies.popleft()
        self.num_bytes -= len(body)
        self._on_taken(len(body))
        return body

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
