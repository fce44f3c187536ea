"""The Supervisor actor: starts every other actor of an engine and restarts those that end."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from raydix.errors import BadRequest, ConfigError, EngineDead, EngineStopped
from raydix.runtime.actors.engine_record import EngineRecord
from raydix.runtime.actors.links.tls import TlsFiles
from raydix.runtime.actors.log_sender import send_log
from raydix.runtime.actors.private_folder import PrivateFolder
from raydix.runtime.actors.process import exit_process
from raydix.runtime.actors.supervision.arena_registry import PlannedArena
from raydix.runtime.actors.supervision.control_calls import Call, CallKind
from raydix.runtime.actors.supervision.control_desk import ControlDesk
from raydix.runtime.actors.supervision.draining import drain_engine
from raydix.runtime.actors.supervision.engine_actors import EngineActors
from raydix.runtime.actors.supervision.engine_facts import EngineFacts
from raydix.runtime.actors.supervision.gateway import Gateway, GatewaySettings
from raydix.runtime.actors.supervision.keeper import Keeper
from raydix.runtime.actors.supervision.log_desk import LogDesk
from raydix.runtime.actors.supervision.restarts import Supervision
from raydix.runtime.actors.supervision.scheduler_calls import SchedulerCalls
from raydix.runtime.actors.supervision.spawn import ActorKind, EngineSpawner
from raydix.runtime.actors.supervision.tokenizer_files import read_tokenizer_files, tokenizer_digest
from raydix.runtime.config.capacity import require_room_in_l3
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.loading import replace_l3
from raydix.runtime.config.storage_libraries import missing_library
from raydix.runtime.phases import critical_path, path_text

logger = logging.getLogger(__name__)


class SupervisorActor:
    """Owns: who is alive, from the start of an engine to its end or its failure."""

    def __init__(
        self,
        *,
        name: str,
        config: EngineConfig,
        spawner: EngineSpawner,
        supervision: Supervision,
        gateway: GatewaySettings | None = None,
        arena: PlannedArena | None = None,
        cluster_owner_pid: int | None = None,
        on_shut_down: Callable[[], None] = exit_process,
    ) -> None:
        """`on_shut_down` is called after a shutdown that a client has asked for.

        `gateway`: where clients on other hosts connect; None: nowhere. `arena`: see `EngineActors`.
        `cluster_owner_pid`: of the process whose private cluster this is; None: of nobody's.
        """
        self._name = name
        self._config = config
        self._supervision = supervision
        self._node, self._cluster_owner_pid = spawner.node, cluster_owner_pid
        self._folder = PrivateFolder()
        self._log = LogDesk(self._folder.path)
        self._actors = EngineActors(
            name=name,
            config=config,
            spawner=spawner,
            supervision=supervision,
            folder=self._folder.path,
            log_path=self._log.path,
            arena=arena,
        )

        self.scheduler_calls = SchedulerCalls(self._actors.scheduler)
        record = self._actors.record
        self._desk = ControlDesk(name, record, self._calls(), on_shut_down)
        self._gateway = (
            None if gateway is None else Gateway(name, gateway, record, self._desk.serve)
        )
        self._listens_at: str | None = None

        self._facts: EngineFacts | None = None
        self._failure: BaseException | None = None
        self._guard: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._is_over = asyncio.Event()
        """The engine has given up, or was stopped."""

    def __repr__(self) -> str:
        return f"Supervisor({self._name})"

    async def open(self, caller_node: str | None = None) -> EngineRecord:
        """Take the engine's name on this host and be found by it, before the engine starts.

        Returns by what callers on a node of Ray reach it; None: on its host. From here on all that
        this process logs goes to the engine's log. Raises ConfigError if a living engine has the
        name, or if the gateway cannot listen.
        """
        await self._desk.open()
        self._log.open()
        send_log(self._log.path, ActorKind.SUPERVISOR)
        if self._gateway is not None:
            self._listens_at = await self._gateway.open(TlsFiles.of(os.environ))
        return self._record_for(caller_node)

    async def start(self) -> EngineFacts:
        """Start the engine; returns once it serves. Raises the first actor's error if it cannot."""
        began_s = time.time()
        # Storage opens once the weights have loaded, which is late to hear of it.
        l3 = self._config.cache.l3 if self._config.has_l3 else None
        if l3 is not None and (missing := missing_library(l3)) is not None:
            await self.stop()
            raise ConfigError(missing)

        keepers = [asyncio.create_task(keeper.run()) for keeper in self._actors.lasting()]
        if self._actors.events is not None:
            keepers.append(asyncio.create_task(self._actors.events.run_while_it_lasts()))
        self._guard = asyncio.create_task(self._watch(keepers))
        ready = asyncio.create_task(self._wait_ready())
        await asyncio.wait({ready, self._guard}, return_when=asyncio.FIRST_COMPLETED)

        failure = self._failure or (ready.exception() if ready.done() else None)
        if not ready.done() or failure is not None:
            ready.cancel()
            await self.stop()
            raise failure or EngineDead(f"engine {self._name} was stopped while it started")

        path = critical_path(self._log.phases(), began_s, time.time())
        logger.info("the actors' start waited for %s", path_text(path))
        facts = ready.result()
        self._facts = replace(facts, client=replace(facts.client, listens_at=self._listens_at))
        return self._facts

    def facts(self, caller_node: str | None = None) -> EngineFacts:
        """What callers on this node of Ray need to know. Raises EngineDead unless it serves."""
        if self._is_over.is_set() or self._failure is not None:
            raise self._end()
        if self._facts is None:
            raise EngineDead(f"engine {self._name} is still starting. Try again soon.")
        return replace(self._facts, record=self._record_for(caller_node))

    def log_path(self) -> str:
        """Where processes of this host that belong to the engine send their log."""
        return self._log.path

    def client_facts(self) -> dict[str, Any]:
        """`ClientFacts` as plain values. Raises EngineDead unless the engine serves."""
        return self.facts().client.to_values()

    async def tokenizer_files(self) -> dict[str, bytes]:
        """What makes the tokenizer, for clients on other hosts. Raises CheckpointError."""
        return await asyncio.to_thread(read_tokenizer_files, self._config.model.path)

    async def wait_ended(self) -> None:
        """Wait until the engine gives up or is stopped.

        Raises EngineDead that says why, EngineStopped if it was stopped.
        """
        await self._is_over.wait()
        raise self._end()

    async def stats(self) -> dict[str, Any]:
        """Figures of every actor, None for one that is being restarted; and L3's last errors."""
        keepers = {keeper.label: keeper for keeper in self._actors.all()}
        figures = await asyncio.gather(*(_stats_of(keeper) for keeper in keepers.values()))
        by_actor = dict(zip(keepers, figures, strict=True))
        restarts = {label: keeper.num_restarts for label, keeper in keepers.items()}

        storage = await self._storage_facts()
        if storage["health"] is not None:
            by_actor[ActorKind.STORAGE.value] = storage["figures"]
            restarts[ActorKind.STORAGE.value] = storage["restarts"]
        return {**by_actor, "restarts": restarts, "storage_errors": storage["errors"]}

    async def health(self) -> dict[str, dict[str, Any]]:
        """Process, incarnation and whether it serves, by actor."""
        health = {
            keeper.label: {
                "pid": None if keeper.actor is None else keeper.actor.pid,
                "incarnation": keeper.incarnation,
                "serves": keeper.actor is not None,
            }
            for keeper in self._actors.all()
        }
        storage = (await self._storage_facts())["health"]
        return health if storage is None else {**health, ActorKind.STORAGE.value: storage}

    async def _storage_facts(self) -> dict[str, Any]:
        """What L2 says of its storage actor; that there is none while L2 is away."""
        host = None if self._actors.host is None else self._actors.host.actor
        with contextlib.suppress(EngineDead):
            if host is not None:
                facts: dict[str, Any] = await host.call("storage_facts")
                return facts
        return {"figures": None, "health": None, "restarts": 0, "errors": {}}

    async def flush(self, l3: bool = False) -> dict[str, Any]:
        """Drop what L1 and L2 hold and no request uses; with `l3` also this namespace's objects.

        Returns what was dropped, by tier. Raises BadRequest, and drops nothing, if `l3` is asked
        for and there is none.
        """
        if l3 and (await self._storage_facts())["health"] is None:
            raise BadRequest(
                f"Engine {self._name} has no L3 to flush. Leave it out, or use raydix cache attach."
            )
        scheduler = await self._actors.scheduler.serving()
        dropped: dict[str, Any] = {"l1_pages": await scheduler.call("flush")}
        if self._actors.host is not None:
            host = await self._actors.host.serving()
            dropped["l2_pages"] = await host.call("flush")
            if l3:
                dropped["l3"] = await host.call("flush_storage")
        return dropped

    async def attach_storage(self, section: Mapping[str, Any]) -> dict[str, Any]:
        """Use the backend of this section `cache.l3` from now on, instead of any in use.

        Raises ConfigError if the section is wrong or its backend cannot work, EngineDead if it
        cannot be put to use in time; then the engine goes on with what it had.
        """
        config = replace_l3(self._config, section)
        if not config.has_l3 or config.cache.l3 is None:
            raise ConfigError(
                "cache.prefix_caching is false, so that L3 has no effect. Start the engine with "
                "true."
            )
        require_room_in_l3(config, (await self._actors.facts()).layout)
        former = await self._actors.ask_host("attach_storage", config.cache.l3)
        return {"attached": config.cache.l3.backend, "detached": former}

    async def detach_storage(self) -> dict[str, Any]:
        """Go on without L3; nothing happens if there is none. What it holds stays there."""
        has_l2 = self._actors.host is not None
        return {"detached": await self._actors.ask_host("detach_storage") if has_l2 else None}

    async def fall_asleep(self, with_weights: bool = False) -> dict[str, Any]:
        """Give the GPUs' memory back once L2 has what L1 holds: see `EngineSleep`."""
        return await self._actors.sleep.fall_asleep(self._actors.scheduler, with_weights)

    async def wake(self) -> dict[str, Any]:
        """Take the GPUs' memory again, and go on with requests: see `EngineSleep`."""
        return await self._actors.sleep.wake(self._actors.scheduler)

    async def phase(self) -> str | None:
        """Whether the engine is awake; None while its Scheduler is being restarted."""
        figures = await _stats_of(self._actors.scheduler)
        return None if figures is None else str(figures["phase"])

    def private_cluster(self) -> dict[str, int] | None:
        """Ray's node process of a private cluster, and who owns that; None: it is not private."""
        owner_pid = self._cluster_owner_pid
        return None if owner_pid is None else {"node_pid": os.getppid(), "owner_pid": owner_pid}

    async def check(self) -> None:
        """Raise AccountingError if an invariant of the Scheduler or of HostMemory does not hold."""
        for keeper in (self._actors.scheduler, self._actors.host):
            if keeper is not None:
                await (await keeper.serving()).call("check")

    async def wait_all_serving(self) -> None:
        """Return once every actor serves and is attached to the Scheduler."""
        await self._actors.wait_attached()

    async def drain(self) -> None:
        """Take nothing new, and let requests, copies to L2 and writes to L3 end; bounded.

        Requests that have not ended in time fail.
        """
        if not self._is_stopping and self._failure is None:
            actors, timeout_s = self._actors, self._supervision.drain_timeout_s
            await drain_engine(self._name, actors.scheduler, actors.host, timeout_s)

    async def shutdown(self) -> None:
        """Stop cleanly: requests and writes to L3 drain for a bounded time; then actors end."""
        await self.drain()
        await self.stop()

    async def stop(self) -> None:
        """End every actor now and remove what the engine left on disk."""
        self._is_stopping = True
        # Whoever dials hangs up before whom it dials ends: nobody is left to tell of a lost link.
        await self._actors.leave_l2()
        if self._guard is not None:
            self._guard.cancel()
            await asyncio.gather(self._guard, return_exceptions=True)
        self._actors.close()
        self._desk.withdraw()
        if self._gateway is not None:
            self._gateway.withdraw()
        self._is_over.set()
        self._folder.remove()

    def _record_for(self, caller_node: str | None) -> EngineRecord:
        """How processes of a node of Ray reach the engine: from another one by the gateway."""
        is_near = caller_node in (None, self._node)
        if is_near or self._gateway is None or self._listens_at is None:
            return self._actors.record
        return self._gateway.record_at(self._listens_at)

    async def _wait_ready(self) -> EngineFacts:
        await self._actors.wait_attached()
        facts = await self._actors.facts()
        tokenizer = await asyncio.to_thread(tokenizer_digest, self._config.model.path)
        return replace(facts, client=replace(facts.client, tokenizer=tokenizer))

    async def _watch(self, keepers: list[asyncio.Task[None]]) -> None:
        """End the engine when one of its actors cannot be kept."""
        kills = asyncio.create_task(self._carry_out_kills())
        sleep = asyncio.create_task(self._actors.carry_out_sleep())
        tasks = {*keepers, kills, sleep}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            self._failure = next(error for task in done if (error := task.exception()) is not None)
            logger.error("engine %s gives up: %s", self._name, self._failure)
        finally:
            for task in (kills, sleep, *reversed(keepers)):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._is_over.set()

    def _end(self) -> EngineDead:
        if self._failure is not None:
            return EngineDead(f"engine {self._name} has given up: {self._failure}")
        return EngineStopped(f"engine {self._name} was shut down")

    def _calls(self) -> dict[str, Call]:
        """What clients may ask for."""
        acts: tuple[Callable[..., Any], ...] = (
            self.client_facts,
            self.log_path,
            self.tokenizer_files,
            self.stats,
            self.health,
            self.flush,
            self.attach_storage,
            self.detach_storage,
            *self.scheduler_calls.all,
            self.fall_asleep,
            self.wake,
            self.phase,
            self.private_cluster,
            self.check,
            self.drain,
            self._log.feed.lines_since,
        )
        waits = (self.wait_ended, self.wait_all_serving, self._log.feed.next_lines)
        return {
            **{method.__name__: Call(method) for method in acts},
            **{method.__name__: Call(method, CallKind.WAITS) for method in waits},
            "shutdown": Call(self.shutdown, CallKind.ENDS),
        }

    async def _carry_out_kills(self) -> None:
        """End the ranks that the Scheduler condemns, because they are overdue."""
        while True:
            scheduler = await self._actors.scheduler.serving()
            try:
                order = await scheduler.call("next_kill")
            except EngineDead:
                # The next incarnation of the Scheduler judges anew.
                await asyncio.sleep(self._supervision.first_backoff_s)
                continue
            self._actors.gpus[order.rank].condemn(order.reason, order.incarnation)


async def _stats_of(keeper: Keeper) -> dict[str, Any] | None:
    actor = keeper.actor
    if actor is None:
        return None
    try:
        return await actor.call("stats")
    except EngineDead:
        return None
