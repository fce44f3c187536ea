"""Starting an engine for a verb, or reaching a running one.

The handles are for `async with`: its end shuts down an engine that was started, and leaves one
that was reached running.
"""

from typing import TYPE_CHECKING

from raydix.runtime.config.engine import EngineConfig

if TYPE_CHECKING:
    from raydix.runtime.api.client import AsyncLLM


async def start_engine(
    config: EngineConfig, name: str | None, address: str | None, **options: float
) -> "AsyncLLM":
    """Start an engine; `address` is the Ray cluster's. options: those of `AsyncLLM.start`."""
    from raydix.runtime.api.client import AsyncLLM

    return await AsyncLLM.start(config, name=name, address=address, **options)


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
