"""What one after another tries, so that those who wait for an attempt need not repeat it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from raydix.errors import EngineDead


class SharedFailure:
    """Owns: whose turn it is to try, and how the last attempt failed.

    While an engine is away every request of a server tries to reach it: one by one, each would wait
    for as many attempts as there are requests before it.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._num_failures = 0
        self._latest = ""

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Try, alone. Raises EngineDead at once if an attempt has failed while this one waited."""
        num_before = self._num_failures
        async with self._lock:
            if self._num_failures > num_before:
                raise EngineDead(self._latest)
            try:
                yield
            except EngineDead as error:
                self._num_failures += 1
                self._latest = str(error)
                raise
