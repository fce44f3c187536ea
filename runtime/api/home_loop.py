"""Which event loop a handle is used on: one at a time, and one after the other."""

import asyncio
from weakref import WeakKeyDictionary

from raydix.errors import BadRequest
from raydix.runtime.api.engine_client import EngineClient
from raydix.runtime.api.found_engine import FoundEngine
from raydix.runtime.api.shared_failure import SharedFailure


class HomeLoop:
    """Owns: the loop on which the connection of a handle lives, and whose turn it is to connect: to
    all engines, or to one.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self.connecting = SharedFailure()
        self._joining = WeakKeyDictionary[FoundEngine, asyncio.Lock]()

    def joining(self, engine: FoundEngine) -> asyncio.Lock:
        """Held by whoever makes a link to this engine, where a second one would end the first."""
        return self._joining.setdefault(engine, asyncio.Lock())

    def enter(self, client: EngineClient | None) -> EngineClient | None:
        """Make the running loop the home. Returns the client, or None if it is of a former one.

        That one is abandoned. Raises BadRequest if its loop still runs.
        """
        running, former = asyncio.get_running_loop(), self._loop
        if former is running:
            return client
        if former is not None and former.is_running():
            raise BadRequest(
                "This AsyncLLM is in use on another event loop. Make one for each, by "
                "AsyncLLM.connect."
            )

        self._loop = running
        self.connecting, self._joining = SharedFailure(), WeakKeyDictionary()
        if client is not None:
            client.abandon()
        return None
