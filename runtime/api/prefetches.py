"""Prefetches that nobody waits for: begun, and asked about later."""

from typing import Any, Protocol

from raydix.runtime.api.engine_client import EngineClient
from raydix.runtime.api.prompts import Prompt


class _Engine(Protocol):
    """The part of a handle on engines that is needed here."""

    async def connected(self) -> EngineClient:
        """The open connection."""

    async def prefetch_state(self, prefetch_id: str) -> dict[str, Any] | None:
        """What the engines know of a prefetch."""


class Prefetches:
    """The prefetches of a handle that go on while its caller does other things."""

    def __init__(self, engine: _Engine) -> None:
        self._engine = engine

    async def begin(self, prompt: Prompt, *, cache_salt: str | None = None) -> str:
        """Begin what `AsyncLLM.prefetch` does; returns the prefetch's name once it is taken in.

        It is cancelled if this handle is disconnected before its end. Raises what
        `AsyncLLM.prefetch` does.
        """
        return await (await self._engine.connected()).begin_prefetch(prompt, cache_salt)

    async def state(self, prefetch_id: str) -> dict[str, Any] | None:
        """How far a prefetch has come; None if the engine knows none of this name.

        `status` is `pending`, `completed` or `cancelled`; `num_found_pages` of `num_pages` are in
        L1 or L2; `tokens_by_source` is what `AsyncLLM.prefetch` returns, once it is completed. An
        engine remembers the last 1,024 that have ended, until its Scheduler ends. Raises
        EngineDead.
        """
        return await self._engine.prefetch_state(prefetch_id)
