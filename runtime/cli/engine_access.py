"""Starting an engine for a verb, or reaching a running one.

The handles are for `async with`: its end shuts down an engine that was started, and leaves one
that was reached running.
"""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raydix.errors import ConfigError
from raydix.runtime.cli.listen_options import split_connect
from raydix.runtime.cli.stop_signal import (
    STOPPED_STATUS,
    StoppedWhileStarting,
    StopsTooSlowly,
    unless_stopped,
)
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.garbage import nothing_collected

if TYPE_CHECKING:
    from raydix.runtime.api.client import AsyncLLM


logger = logging.getLogger(__name__)


async def start_engine(
    config: EngineConfig, name: str | None, address: str | None, **options: Any
) -> "AsyncLLM":
    """Start an engine; `address` is the Ray cluster's. options: those of `AsyncLLM.start`.

    SIGINT and SIGTERM end the start: raises StoppedWhileStarting, or ends the process if Ray itself
    is just being started, which cannot be interrupted.
    """
    with nothing_collected():
        from raydix.runtime.api.client import AsyncLLM
        from raydix.runtime.api.engine_start import UNDO_S

    starting = AsyncLLM.start(config, name=name, address=address, **options)
    try:
        engine = await unless_stopped(
            starting, UNDO_S, on_stop=lambda: logger.info("stopping before the engine serves")
        )
    except StopsTooSlowly:
        # The reaper ends whatever Ray has started.
        os._exit(STOPPED_STATUS)
    if engine is None:
        raise StoppedWhileStarting
    return engine


@dataclass(frozen=True, slots=True)
class Where:
    """What `--connect`, `--address` and `--secret-file` say of a running engine."""

    connect: str
    """`NAME`, of this host or of a Ray cluster, or `NAME@HOST:PORT`."""
    cluster: str | None = None
    secret_file: Path | None = None

    def handle(self) -> "AsyncLLM":
        """A handle that looks for the engine when it is first asked something.

        Control calls read no tokenizer, whose library takes seconds to import. Raises ConfigError
        for options that contradict each other.
        """
        from raydix.runtime.api.client import AsyncLLM

        name, address = split_connect(self.connect)
        if address is None and self.secret_file is not None:
            raise ConfigError(
                "--secret-file is for engines on other hosts. Name where yours listens: "
                f"--connect {name}@HOST:PORT."
            )
        return AsyncLLM(name, address, self.secret_file, self.cluster)

    async def reach(self) -> "AsyncLLM":
        """A handle that is connected, for requests. Raises what `handle` does, and EngineDead."""
        engine = self.handle()
        await engine.connected()
        return engine


async def open_engine(
    config: EngineConfig | None,
    connect: str | None,
    address: str | None,
    secret_file: Path | None = None,
) -> "AsyncLLM":
    """Reach the engine that `connect` names; if it names none, start one by `config`."""
    if connect is not None:
        return await Where(connect, address, secret_file).reach()
    assert config is not None, "an engine is either reached or configured"
    # Without a name: whoever connects to the default one means an engine that stays up.
    return await start_engine(config, None, address)
