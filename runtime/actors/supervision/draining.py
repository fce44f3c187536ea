"""How an engine that stops lets what is under way end, for a bounded time."""

import asyncio
import contextlib
import logging

from raydix.errors import EngineDead
from raydix.runtime.actors.supervision.keeper import Keeper

logger = logging.getLogger(__name__)

_ANSWER_S = 1.0
"""The seconds beyond its own bound for an actor to answer that it has drained."""


def longest_drain_s(timeout_s: float) -> float:
    """The longest that `drain_engine` takes."""
    return 3 * timeout_s + 2 * _ANSWER_S


async def drain_engine(
    name: str, scheduler_keeper: Keeper, host_keeper: Keeper | None, timeout_s: float
) -> None:
    """Let requests and copies to L2 end, then writes to L3."""
    scheduler = scheduler_keeper.actor
    with contextlib.suppress(TimeoutError, EngineDead):
        if scheduler is not None:
            # It waits for so long twice.
            async with asyncio.timeout(2 * timeout_s + _ANSWER_S):
                if not await scheduler.call("drain", timeout_s):
                    logger.warning("engine %s stops before all pages were copied to L2", name)

    with contextlib.suppress(TimeoutError, EngineDead):
        # Looked up now: it may have been restarted meanwhile.
        host = None if host_keeper is None else host_keeper.actor
        if host is not None:
            async with asyncio.timeout(timeout_s + _ANSWER_S):
                if not await host.call("drain", timeout_s):
                    logger.warning("engine %s stops before all pages were written to L3", name)
