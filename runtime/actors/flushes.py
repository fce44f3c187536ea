"""The callers that wait until a tier is flushed."""

import asyncio

from raydix.runtime.messages.host import ObjectStatus


class Flushes:
    """Owns: who waits for flushes of L2, and for the one of L3 that is under way."""

    def __init__(self) -> None:
        self._host: list[asyncio.Future[int]] = []
        self._storage: asyncio.Future[ObjectStatus] | None = None

    def expect_host(self) -> asyncio.Future[int]:
        """What is done once L2 is flushed, with the number of pages."""
        flush: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._host.append(flush)
        return flush

    def end_host(self, num_pages: int) -> None:
        """Answer every flush that waits: each began the walk over the index anew; it is done."""
        flushes, self._host = self._host, []
        for flush in flushes:
            if not flush.done():
                flush.set_result(num_pages)

    @property
    def storage(self) -> asyncio.Future[ObjectStatus] | None:
        """The flush of L3 that is under way; others may wait for it, too."""
        return self._storage

    def expect_storage(self) -> asyncio.Future[ObjectStatus]:
        """What is done once L3 is flushed; none is under way."""
        self._storage = asyncio.get_running_loop().create_future()
        return self._storage

    def end_storage(self, status: ObjectStatus) -> None:
        """Answer those who wait."""
        if self._storage is not None:
            self._storage.set_result(status)
            self._storage = None
