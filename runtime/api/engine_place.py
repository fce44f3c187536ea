"""Where a handle looks for its engine."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from raydix.errors import ConfigError, EngineDead
from raydix.runtime.actors.bootstrap.control_client import (
    client_hello,
    dial_engine,
    new_client_name,
)
from raydix.runtime.actors.bootstrap.launch import EngineHandle, find_engine
from raydix.runtime.actors.bootstrap.remote import reach_engine
from raydix.runtime.actors.links.link import Link, LinkClosed
from raydix.runtime.messages.hello import Role


@dataclass(frozen=True, slots=True)
class EnginePlace:
    """An engine's name, and where it is; see `AsyncLLM.connect`. Can be pickled.

    Says where the secret is, not what it is: a copy may travel in the clear. Raises ConfigError for
    an address beside a cluster.
    """

    name: str
    address: str | None = None
    """The `HOST:PORT` at which the engine listens; None: it is on this host."""
    secret_file: str | Path | None = None
    cluster: str | None = None
    """The address of the Ray cluster through which the engine is found."""

    def __post_init__(self) -> None:
        if self.address is not None and self.cluster is not None:
            raise ConfigError(
                f"Engine {self.name} is looked for at {self.address} and in the Ray cluster at "
                f"{self.cluster}. Leave one out."
            )

    async def find(self) -> EngineHandle:
        """The engine that has the name there now. Raises EngineDead or ConfigError."""
        if self.address is not None:
            return await reach_engine(self.name, self.address, self.secret_file)
        return await asyncio.to_thread(find_engine, self.name, self.cluster)


class Dialler:
    """Owns: the name by which engines know one client again, and how many links it has opened.

    Its newest link to an engine ends the former one, with all that was asked over it.
    """

    def __init__(self) -> None:
        self._client = new_client_name()
        self._num_links = 0

    async def open_link(self, name: str, handle: EngineHandle) -> Link:
        """Connect to an engine that was found. Raises EngineDead."""
        self._num_links += 1
        hello = client_hello(Role.SCHEDULER, self._client, self._num_links)
        try:
            return await dial_engine(handle.record, hello)
        except (LinkClosed, OSError) as error:
            raise EngineDead(
                f"The engine {name!r} does not answer ({error}). Start it, or wait until it has "
                "recovered."
            ) from error
