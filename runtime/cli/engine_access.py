"""Starting an engine for a verb, or reaching a running one.

The handles are for `async with`: its end shuts down an engine that was started, and leaves one
that was reached running.
"""

import logging
import os
from typing import TYPE_CHECKING

from raydix.runtime.cli.stop_signal import (
    STOPPED_STATUS,
    StoppedWhileStarting,
    StopsTooSlowly,
    unless_stopped,
)
from raydix.runtime.config.engine import EngineConfig

if TYPE_CHECKING:
    from raydix.runtime.api.client import AsyncLLM


logger = logging.getLogger(__name__)

_UNDO_S = 1.0
"""For an engine that was stopped while it started to give everything back."""


async def start_engine(
    config: EngineConfig, name: str | None, address: str | None, **options: float
) -> "AsyncLLM":
    """Start an engine; `address` is the Ray cluster's. options: those of `AsyncLLM.start`.

    SIGINT and SIGTERM end the start: raises StoppedWhileStarting, or ends the process if Ray itself
    is just being started, which cannot be interrupted.
    """
    from raydix.runtime.api.client import AsyncLLM

    starting = AsyncLLM.start(config, name=name, address=address, **options)
    try:
        engine = await unless_stopped(
            starting, _UNDO_S, on_stop=lambda: logger.info("stopping before the engine serves")
        )
    except StopsTooSlowly:
        # The reaper ends whatever Ray has started.
        os._exit(STOPPED_STATUS)
    if engine is None:
        raise StoppedWhileStarting
    return engine


async def reach_engine(name: str, address: str | None) -> "AsyncLLM":
    """Reach the running engine of this name."""
    from raydix.runtime.api.client import AsyncLLM

    return await AsyncLLM.connect(name, address=address)


async def open_engine(
    config: EngineConfig | None, connect: str | None, address: str | None
) -> "AsyncLLM":
    """Reach the engine named `connect`; if there is no name, start one by `config`."""
    if connect is not None:
        return await reach_engine(connect, address)
    assert config is not None, "an engine is either reached or configured"
    # Without a name: whoever connects to the default one means an engine that stays up.
    return await start_engine(config, None, address)
