"""What would carry the pages of other nodes, by a configuration and by what this machine has."""

import os
from dataclasses import dataclass

from raydix.runtime.actors.links.tls import TlsFiles
from raydix.runtime.actors.pulls.carriers import nixl_facts, why_not_nixl
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.pull import PullTransport


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenTransport:
    """What carries pulls between two nodes like this machine."""

    transport: PullTransport
    why: str
    is_as_set: bool
    """False: the configuration names another one."""

    def __str__(self) -> str:
        return f"{self.transport}: {self.why}"


def chosen_transport(config: EngineConfig) -> ChosenTransport | None:
    """What this machine would pull by. None: it would not pull. Raises ConfigError."""
    pull = config.cache.l2.pull if config.has_l2 and config.cache.l2 is not None else None
    if pull is None:
        return None
    reason = why_not_nixl(pull.transport, nixl_facts(TlsFiles.of(os.environ) is not None))
    if reason is None:
        return ChosenTransport(
            transport=PullTransport.NIXL,
            why="the library and what it needs are here; a node that lacks them is read by tcp",
            is_as_set=True,
        )
    is_as_set = pull.transport is not PullTransport.NIXL
    return ChosenTransport(transport=PullTransport.TCP, why=reason, is_as_set=is_as_set)
