"""A handle's way to its engine: found by name, connected to, and again after a loss."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

from raydix.errors import EngineDead, RaydixError
from raydix.runtime.actors.bootstrap.launch import EngineHandle
from raydix.runtime.api.engine_client import EngineClient
from raydix.runtime.api.engine_place import EnginePlace, open_link
from raydix.runtime.api.home_loop import HomeLoop
from raydix.runtime.api.known_tokenizers import KnownTokenizers
from raydix.runtime.api.model_limits import ModelLimits
from raydix.runtime.api.tokenizer import Tokenizer

_RETRY_S = 0.5


class EngineConnection:
    """Owns: which engine has the name now, as far as it was found, and the client of it.

    A lost link is made anew as soon as requests wait for it, until that works or the engine is
    gone.
    """

    def __init__(self, place: EnginePlace) -> None:
        self.place = place
        self.has_started_engine = False
        self._handle: EngineHandle | None = None
        self._client: EngineClient | None = None
        self._tokenizers = KnownTokenizers(is_near=place.address is None)
        self._home = HomeLoop()
        self._recovery: asyncio.Task[None] | None = None

    def adopt(
        self, handle: EngineHandle, model_path: str | Path, tokenizer: Tokenizer | None
    ) -> None:
        """Be the way to an engine that this process has started, of whose model this is known.

        `model_path`: as given; the engine's own may name a commit.
        """
        self._tokenizers.add(str(model_path), tokenizer)
        self._handle = handle
        self.has_started_engine = True

    async def client(self) -> EngineClient:
        """The client of whatever engine has the name now, with a link. Raises EngineDead."""
        client = self.client_at_hand()
        if client is not None and not client.is_closed:
            return client
        async with self._home.connecting.turn():
            if self._client is None or self._client.is_closed:
                self._client = await self._connect()
            return self._client

    def client_at_hand(self) -> EngineClient | None:
        """The client that there is on this event loop, perhaps without a link."""
        self._client = self._home.enter(self._client)
        return self._client

    async def found(self) -> EngineHandle:
        """The engine. Raises EngineDead if it was not found and there is none."""
        if self._handle is None:
            self._handle = await self.place.find()
        return self._handle

    async def call(self, method: str, *arguments: Any) -> Any:
        """Make a control call to whatever engine has the name now."""
        try:
            return await (await self.found()).call(method, *arguments)
        except EngineDead:
            self._forget()
            raise

    async def disconnect(self) -> None:
        """Leave the engine. Open streams raise Cancelled and their requests are aborted."""
        client, self._client = self.client_at_hand(), None
        if self._recovery is not None:
            self._recovery.cancel()
        if client is not None:
            await client.close()

    async def shutdown(self) -> None:
        """Stop the engine, whoever started it; nothing if it was stopped by this already."""
        await self.disconnect()
        if self.has_started_engine and self._handle is None:
            return
        await (await self.found()).shutdown()
        self._handle = None

    async def _connect(self) -> EngineClient:
        former = self._client
        if former is not None:
            await self._find_again()
        try:
            handle = await self.found()
            tokenizer = await self._tokenizers.of(handle)
            link = await open_link(self.place.name, handle)
        except EngineDead:
            self._forget()
            raise

        limits = ModelLimits.of(handle.facts)
        if former is None:
            return EngineClient(link, limits, tokenizer, self._recover)
        if former.limits == limits:
            former.go_on(link)
            return former
        text = f"The engine {self.place.name!r} serves another model by now. Ask anew."
        former.give_up(EngineDead(text))
        return EngineClient(link, limits, tokenizer, self._recover)

    async def _find_again(self) -> None:
        """Ask for the engine after a lost connection; raise EngineDead at once if it has ended."""
        if self.has_started_engine:
            await (await self.found()).call("client_facts")
        else:
            self._handle = None

    def _forget(self) -> None:
        """Find the engine anew next time, by its name, unless this handle has started it."""
        if not self.has_started_engine:
            self._handle = None

    def _recover(self) -> None:
        """Requests wait for a link."""
        self._recovery = asyncio.create_task(self._connect_for_waiting(), name="raydix-recovery")

    async def _connect_for_waiting(self) -> None:
        client = self._client
        assert client is not None, "its link was lost"
        while client.has_waiting:
            try:
                # An engine that is gone says so here; one whose Scheduler is made anew does not.
                await self.call("client_facts")
            except RaydixError as error:
                client.give_up(error)
                return
            with contextlib.suppress(EngineDead):
                await self.client()
                return
            await asyncio.sleep(_RETRY_S)
