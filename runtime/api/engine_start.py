"""Starting an engine for a handle, so that a start that is cancelled leaves none."""

import asyncio
import contextlib

from raydix.errors import RaydixError
from raydix.runtime.actors.bootstrap.launch import EngineHandle, start_engine
from raydix.runtime.actors.supervision.gateway import GatewaySettings
from raydix.runtime.actors.supervision.restarts import Supervision
from raydix.runtime.config.engine import EngineConfig


async def start_or_undo(
    config: EngineConfig,
    name: str,
    address: str | None,
    supervision: Supervision,
    gateway: GatewaySettings | None,
) -> EngineHandle:
    """Start an engine on a thread, as that blocks.

    A cancelled start cannot be stopped half-way: its end is waited for, and the engine shut down.
    """
    starting = asyncio.create_task(
        asyncio.to_thread(start_engine, config, name, address, supervision, gateway=gateway)
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        with contextlib.suppress(RaydixError):
            await (await starting).shutdown()
        raise
