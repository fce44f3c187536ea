"""`raydix serve`: keep an engine up."""

import asyncio

from rich.console import Console

from raydix.runtime.cli.engine_access import start_engine
from raydix.runtime.cli.options import Address, Name, Settings, Source, sections_of
from raydix.runtime.cli.stop_signal import until_stopped
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config


def serve(
    source: Source = None, settings: Settings = None, name: Name = "raydix", address: Address = None
) -> None:
    """Start an engine and keep it up until Ctrl-C; reach it with AsyncLLM.connect(NAME)."""
    config = load_config(source, sections_of(settings))
    asyncio.run(serve_until_stopped(config, name, address, Console()))


async def serve_until_stopped(
    config: EngineConfig, name: str, address: str | None, console: Console
) -> None:
    """Keep an engine up until SIGINT or SIGTERM, then stop it cleanly."""
    async with await start_engine(config, name, address):
        console.print(
            f"Engine {name} is ready: raydix generate --connect {name} --prompt ...   "
            "Ctrl-C stops it."
        )
        await until_stopped()
