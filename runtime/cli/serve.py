"""`raydix serve`: keep an engine up."""

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Annotated

import typer

from raydix.runtime.actors.log_format import format_json, format_text
from raydix.runtime.actors.supervision.restarts import DRAIN_S
from raydix.runtime.cli.config_check import print_report
from raydix.runtime.cli.console_log import logging_to_console
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
from raydix.runtime.cli.stop_signal import StopsTooSlowly, unless_stopped, until_stopped
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import load_config

if TYPE_CHECKING:
    from raydix.runtime.api.client import AsyncLLM

logger = logging.getLogger(__name__)

_ACTOR = "serve"
_UNDO_S = 1.0
"""For an engine that was stopped while it started to give everything back."""
_STOPPED_STATUS = 130
"""As of a shell's command that Ctrl-C ends."""

DrainS = Annotated[
    float,
    typer.Option(
        "--drain-s",
        min=0.0,
        help="Seconds for requests to end after Ctrl-C, then for writes to storage.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only say what the engine would take, and end.")
]
LogJson = Annotated[
    bool, typer.Option("--log-json", help="One JSON object per line instead of text.")
]


def serve(
    source: Source = None,
    settings: Settings = None,
    *,
    name: Name = "raydix",
    address: Address = None,
    drain_s: DrainS = DRAIN_S,
    dry_run: DryRun = False,
    log_json: LogJson = False,
    http: Http = None,
    keys: KeyFile = None,
    model_name: ModelName = None,
) -> None:
    """Start an engine and keep it up until Ctrl-C.

    Reach it with AsyncLLM.connect(NAME), or over HTTP. Ends with an error if the engine does.
    """
    config = load_config(source, sections_of(settings))
    front = read_http_options(http, keys, model_name, config)
    if dry_run:
        print_report(config)
        return
    with logging_to_console(format_json if log_json else format_text, _ACTOR):
        try:
            asyncio.run(serve_until_stopped(config, name, address, drain_s, front))
        except StoppedWhileStarting:
            raise typer.Exit(_STOPPED_STATUS) from None


class StoppedWhileStarting(Exception):
    """Nothing of the engine is left."""


async def serve_until_stopped(
    config: EngineConfig,
    name: str,
    address: str | None,
    drain_s: float,
    front: HttpFront | None,
) -> None:
    """Keep an engine up until SIGINT or SIGTERM, then stop it cleanly.

    Raises EngineDead, saying why, if it ends before, and StoppedWhileStarting.
    """
    async with (
        await _start_unless_stopped(config, name, address, drain_s) as engine,
        serving_http(front, engine, drain_s) as url,
    ):
        logger.info(
            "engine %s is ready: raydix generate --connect %s --prompt ...   Ctrl-C stops it",
            name,
            name,
        )
        if front is not None:
            logger.info("HTTP is ready at %s/v1, model %s", url, front.model_name)
        await until_stopped(engine.wait_ended())
        logger.info("stopping: requests may go on for %g s; Ctrl-C again ends them", drain_s)


async def _start_unless_stopped(
    config: EngineConfig, name: str, address: str | None, drain_s: float
) -> "AsyncLLM":
    starting = start_engine(config, name, address, drain_s=drain_s)
    try:
        engine = await unless_stopped(
            starting, _UNDO_S, on_stop=lambda: logger.info("stopping before engine %s serves", name)
        )
    except StopsTooSlowly:
        # Ray's own start cannot be interrupted. The reaper ends whatever it has started.
        os._exit(_STOPPED_STATUS)
    if engine is None:
        raise StoppedWhileStarting
    return engine
