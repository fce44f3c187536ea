"""A whole engine in one process, without Ray, for tests and benchmarks.

Actors, links, threads and files are the real ones.
"""

import asyncio
import gc
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from raydix.errors import AccountingError
from raydix.runtime.actors.gpu_model import BuildModel
from raydix.runtime.actors.links.socket_dialer import connect
from raydix.runtime.actors.supervision.engine_facts import EngineFacts
from raydix.runtime.actors.supervision.restarts import Supervision
from raydix.runtime.actors.supervision.spawn import ActorKind
from raydix.runtime.actors.supervision.supervisor import SupervisorActor
from raydix.runtime.actors.torch_builder import build_torch_model
from raydix.runtime.api.engine_client import EngineClient
from raydix.runtime.api.model_limits import ModelLimits
from raydix.runtime.api.tokenizer import Tokenizer
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.messages.control import pack_values, unpack_values
from raydix.runtime.messages.hello import Hello, Role
from raydix.runtime.testing.peers import InProcessPeers
from raydix.runtime.testing.spawner import InProcessSpawner

_POLL_S = 0.002
_NUM_QUIET_POLLS = 3
"""The number of polls in a row that must find the same: a message between two actors arrives within
one.
"""
_CHANGING_FIGURES = ("scheduler_cpu_s",)
_BUSY_SCHEDULER = (
    "num_requests_running",
    "num_requests_loading",
    "num_requests_waiting",
    "transfers_in_flight",
    "dirty_pages",
    "leases_wanted",
)
_BUSY_HOST = ("lookups", "pages_reading", "leases", "l3_writes_pending", "pages_quarantined")


class InProcessEngine:
    """A running engine and its clients. Every method belongs to the engine's own loop."""

    def __init__(
        self, supervisor: SupervisorActor, spawner: InProcessSpawner, facts: EngineFacts
    ) -> None:
        self._supervisor = supervisor
        self.spawner = spawner
        self.facts = facts
        self._clients: list[EngineClient] = []

    @property
    def client(self) -> EngineClient:
        """The client that was connected first."""
        return self._clients[0]

    async def connect(self, tokenizer: Tokenizer | None = None) -> EngineClient:
        """Another client with a link of its own; closed with the engine at the latest."""
        facts = self.facts.client
        name = f"client{len(self._clients)}"
        hello = Hello(role=Role.CLIENT, name=name, incarnation=0, pid=os.getpid())
        record = self.facts.record
        link = await connect(record.client_address, hello, record.secret)

        client = EngineClient(ModelLimits.of(facts), tokenizer)
        client.use(facts.name, link)
        self._clients.append(client)
        return client

    async def stats(self) -> dict[str, Any]:
        """Figures of every actor, by `scheduler`, `host`, `storage`, `gpu0`, ..."""
        return await self._supervisor.stats()

    async def flush(self, l3: bool = False) -> dict[str, Any]:
        """Drop what L1 and L2 hold and nobody uses; with `l3` also this model's objects."""
        return await self._supervisor.flush(l3)

    async def flush_l1(self) -> int:
        """Drop what L1 holds and no request uses. Returns the number of pages."""
        scheduler = self.spawner.latest(ActorKind.SCHEDULER)
        assert scheduler is not None, "an engine that runs has one"
        return int(await scheduler.call("flush"))

    async def attach_storage(self, section: dict[str, Any]) -> dict[str, Any]:
        """Use another L3 backend from now on."""
        return await self._supervisor.attach_storage(section)

    async def detach_storage(self) -> dict[str, Any]:
        """Go on without L3."""
        return await self._supervisor.detach_storage()

    async def fall_asleep(self, with_weights: bool) -> dict[str, Any]:
        """Have all ranks give back their pages, and their weights if these are to go, too."""
        return await self._supervisor.fall_asleep(with_weights)

    async def wake(self) -> dict[str, Any]:
        """Have all ranks take again what they gave back."""
        return await self._supervisor.wake()

    async def phase(self) -> str | None:
        """Whether the engine is awake; None while its Scheduler is being restarted."""
        return await self._supervisor.phase()

    async def explain(self, request_id: str) -> dict[str, Any] | None:
        """Where the prompt of a recent request came from, by token range."""
        return await self._supervisor.scheduler_calls.explain(request_id)

    async def call(self, method: str, *arguments: Any) -> Any:
        """Ask the Scheduler something, as a control call does: in bytes, both ways."""
        known = {each.__name__: each for each in self._supervisor.scheduler_calls.all}
        answer = await known[method](*unpack_values(pack_values(arguments)))
        return unpack_values(pack_values(answer))

    async def prefetch_state(self, request_id: str) -> dict[str, Any] | None:
        """How far a client's prefetch has come, or what has become of it."""
        return await self._supervisor.scheduler_calls.prefetch_state(request_id)

    async def settle(self, timeout_s: float = 30.0) -> dict[str, Any]:
        """Wait until nothing is in flight between any two actors. Returns the figures.

        Raises AccountingError, with what is left, after `timeout_s`.
        """
        deadline_s = time.monotonic() + timeout_s
        previous: dict[str, Any] = {}
        num_quiet = 0
        while num_quiet < _NUM_QUIET_POLLS:
            if time.monotonic() > deadline_s:
                raise AccountingError(
                    f"the engine is not idle after {timeout_s} s: {_unsettled(previous)}"
                )

            await asyncio.sleep(_POLL_S)
            stats = await self.stats()
            figures = {
                who: {
                    name: value
                    for name, value in (own or {}).items()
                    if name not in _CHANGING_FIGURES
                }
                for who, own in stats.items()
            }

            # A message under way shows as a change, or as something unsettled.
            num_quiet = num_quiet + 1 if figures == previous and not _unsettled(figures) else 0
            previous = figures
        return previous

    async def check(self) -> dict[str, Any]:
        """Settle, let every owner prove its invariants, and demand that nothing is held.

        Returns the figures.

        Raises AccountingError.
        """
        stats = await self.settle()
        for kind in (ActorKind.SCHEDULER, ActorKind.HOST_MEMORY):
            actor = self.spawner.latest(kind)
            if actor is not None:
                await actor.call("check")

        if stats["scheduler"]["l1_locked_pages"]:
            raise AccountingError(f"L1 pages are locked in an idle engine: {stats['scheduler']}")

        host = stats.get("host")
        in_stock = stats["scheduler"]["l2_granted_pages"]
        if host is not None and not host["pages_filling"] == host["pages_granted"] == in_stock:
            raise AccountingError(
                f"host pages are FILLING in an idle engine; the Scheduler holds {in_stock}: {host}"
            )
        return stats

    async def close(self) -> None:
        """Close every client."""
        for client in self._clients:
            await client.close()


def _unsettled(figures: dict[str, Any]) -> dict[str, Any]:
    """What keeps the engine from being idle, by actor and name."""
    busy = {
        f"scheduler.{name}": figures.get("scheduler", {}).get(name, 0) for name in _BUSY_SCHEDULER
    }
    host = figures.get("host", {})
    busy |= {f"host.{name}": host.get(name, 0) for name in _BUSY_HOST}
    if host.get("l3_breaker") == "open":
        # They wait for a broken backend to come back, which may take for ever.
        del busy["host.l3_writes_pending"]
    return {name: value for name, value in busy.items() if value}


@asynccontextmanager
async def in_process_engine(
    config: EngineConfig,
    build_model: BuildModel = build_torch_model,
    drain_timeout_s: float = 10.0,
    name: str = "in-process",
    peers: InProcessPeers | None = None,
) -> AsyncIterator[InProcessEngine]:
    """Start an engine in this process, and stop it at the end.

    Writes to L3 then drain for `drain_timeout_s` at most.

    `build_model`: what each GPU actor drives. `peers`: the nodes that it may pull pages from, under
    other names. An actor that cannot go on ends the engine, whose
    clients then fail.
    Raises ConfigError or CheckpointError.
    """
    spawner = InProcessSpawner(build_model, peers)
    supervision = Supervision(max_crashes=0, drain_timeout_s=drain_timeout_s)
    supervisor = SupervisorActor(name=name, config=config, spawner=spawner, supervision=supervision)

    try:
        engine = InProcessEngine(supervisor, spawner, await supervisor.start())
        try:
            await engine.connect()
            yield engine
        finally:
            await engine.close()
    finally:
        await supervisor.shutdown()
        # Its actors have kept the collector from all that was there. In this process other engines
        # may follow, whose pools need the memory.
        gc.unfreeze()
