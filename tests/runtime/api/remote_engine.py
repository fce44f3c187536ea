"""An engine that listens for clients on other hosts, in this process and without Ray."""

import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from raydix.runtime.actors.links.address import TcpAddress
from raydix.runtime.actors.log_sender import LOGGERS
from raydix.runtime.actors.supervision.gateway import GatewaySettings
from raydix.runtime.actors.supervision.restarts import Supervision
from raydix.runtime.actors.supervision.supervisor import SupervisorActor
from raydix.runtime.config.loading import load_config
from raydix.runtime.testing.sleeping_runner import build_sleeping_model
from raydix.runtime.testing.spawner import InProcessSpawner

SECRET = "0123456789abcdef" * 2


@dataclass(frozen=True)
class RemoteEngine:
    """Where it listens, and the Supervisor that tests may end."""

    name: str
    address: str
    supervisor: SupervisorActor


@contextlib.asynccontextmanager
async def remote_engine(
    name: str,
    model_path: Path,
    port: int = 0,
    step_s: float = 0.0,
    secret: str | None = SECRET,
) -> AsyncIterator[RemoteEngine]:
    """An engine whose model makes its tokens up."""
    config = load_config(
        {
            "model": {"path": str(model_path), "max_model_len": 4096},
            "cache": {"l1": {"num_pages": 512}, "l2": None},
        }
    )
    supervisor = SupervisorActor(
        name=name,
        config=config,
        spawner=InProcessSpawner(partial(build_sleeping_model, step_s=step_s)),
        supervision=Supervision(max_crashes=0, drain_timeout_s=0.1),
        gateway=GatewaySettings(
            address=TcpAddress("127.0.0.1", port),
            secret=None if secret is None else secret.encode(),
        ),
        on_shut_down=lambda: None,
    )
    with logging_as_before():
        await supervisor.open()
        try:
            facts = await supervisor.start()
            assert facts.client.listens_at is not None
            yield RemoteEngine(name, facts.client.listens_at, supervisor)
        finally:
            await supervisor.shutdown()


@contextlib.contextmanager
def logging_as_before() -> Iterator[None]:
    """Take back at the end that this process's log goes to an engine, as a Supervisor's does."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    former = [(each.level, tuple(each.handlers)) for each in loggers]
    try:
        yield
    finally:
        for each, (level, handlers) in zip(loggers, former, strict=True):
            each.setLevel(level)
            for handler in set(each.handlers).difference(handlers):
                each.removeHandler(handler)
