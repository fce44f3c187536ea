"""`raydix serve`: keep an engine up."""

import asyncio

from rich.console import Console

from raydix.runtime.cli.engine_access import start_engine
from raydix.runtime.cli.http_front import (
    Http,
    HttpFront,
    KeyFile,
    ModelName,
    read_http_options,
    serving_http,
)
from raydix.runtime.cli.options import Address, Name, Settings, Source, sections_of
from raydix.runtime.cli.stop_signal import until_stopped
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config

_DRAIN_S = 10.0
"""HTTP streams may go on for so long after Ctrl-C."""


def serve(
    source: Source = None,
    settings: Settings = None,
    name: Name = "raydix",
    address: Address = None,
    *,
    http: Http = None,
    keys: KeyFile = None,
    model_name: ModelName = None,
) -> None:
    """Start an engine and keep it up until Ctrl-C.

    Reach it with AsyncLLM.connect(NAME), or over HTTP.
    """
    config = load_config(source, sections_of(settings))
    front = read_http_options(http, keys, model_name, config)
    asyncio.run(serve_until_stopped(config, name, address, _DRAIN_S, front, Console()))


async def serve_until_stopped(
    config: EngineConfig,
    name: str,
    address: str | None,
    drain_s: float,
    front: HttpFront | None,
    console: Console,
) -> None:
    """Keep an engine up until SIGINT or SIGTERM, then stop it cleanly."""
    async with (
        await start_engine(config, name, address) as engine,
        serving_http(front, engine, drain_s) as url,
    ):
        console.print(
            f"Engine {name} is ready: raydix generate --connect {name} --prompt ...   "
            "Ctrl-C stops it."
        )
        if front is not None:
            console.print(f"HTTP is ready at {url}/v1, model {front.model_name}.")
        await until_stopped()
