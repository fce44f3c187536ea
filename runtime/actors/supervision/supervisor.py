"""The Supervisor actor: creates every other actor of an engine, watches them and makes again those
that end.
"""

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Awaitable, Mapping
from typing import Any

from raydix.errors import ConfigError, EngineDead
from raydix.runtime.actors.gpu_facts import GpuFacts, GpuSetup
from raydix.runtime.actors.host_memory import ArenaLocation, HostMemorySetup
from raydix.runtime.actors.private_folder import PrivateFolder
from raydix.runtime.actors.scheduler import SchedulerSetup
from raydix.runtime.actors.storage import StorageSetup
from raydix.runtime.actors.supervision.arena_registry import ArenaRegistry
from raydix.runtime.actors.supervision.core_settings import host_settings, scheduler_settings
from raydix.runtime.actors.supervision.engine_facts import EngineFacts, actor_name
from raydix.runtime.actors.supervision.keeper import Keeper
from raydix.runtime.actors.supervision.restarts import Supervision
from raydix.runtime.actors.supervision.spawn import ActorKind, RunningActor, Spawner
from raydix.runtime.actors.supervision.storage_switch import StorageSwitch
from raydix.runtime.config.capacity import host_bytes_per_node
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.l3 import L3Section
from raydix.runtime.config.loading import replace_l3
from raydix.runtime.storage.namespace import make_namespace

logger = logging.getLogger(__name__)

_SECRET_BYTES = 32
_WEIGHT_VERSION = "0"
"""Weights do not change while an engine runs."""


class SupervisorActor:
    """Owns: who is alive. One `Keeper` per actor; addresses and the secret stay the same across
    incarnations.
    """

    def __init__(
        self, *, name: str, config: EngineConfig, spawner: Spawner, supervision: Supervision
    ) -> None:
        self._name = name
        self._config = config
        self._spawner = spawner
        self._supervision = supervision
        self._folder = PrivateFolder()
        self._secret = secrets.token_bytes(_SECRET_BYTES)
        self._facts: EngineFacts | None = None
        self._failure: BaseException | None = None
        self._guard: asyncio.Task[None] | None = None
        self._is_stopping = False
        num_ranks = config.parallel.dp * config.parallel.tp
        self._gpu_facts: dict[int, GpuFacts] = {}
        self._all_loaded = asyncio.Event()
        self._num_pages: int | None = None
        """L1 pages per rank that the Scheduler counts on; None until every rank has loaded."""
        self._arenas = ArenaRegistry()
        self._gpus = [self._gpu_keeper(rank) for rank in range(num_ranks)]
        self._scheduler = self._keeper(ActorKind.SCHEDULER, self._bring_up_scheduler)
        self._host = (
            self._keeper(ActorKind.HOST_MEMORY, self._bring_up_host) if config.has_l2 else None
        )
        self._storage = StorageSwitch(self, supervision)

    def __repr__(self) -> str:
        return f"Supervisor({self._name})"

    # Control calls --------------------------------------------------------------------------------

    async def start(self) -> EngineFacts:
        """Create the engine and return once it serves. Raises the first actor's typed error if it
        cannot.
        """
        if self._config.has_l3 and self._config.cache.l3 is not None:
            self._storage.start(self._config.cache.l3)
        keepers = [asyncio.create_task(keeper.run()) for keeper in self._lasting_keepers()]
        self._guard = asyncio.create_task(self._watch(keepers))
        ready = asyncio.create_task(self._wait_ready())
        await asyncio.wait({ready, self._guard}, return_when=asyncio.FIRST_COMPLETED)
        failure = self._failure or (ready.exception() if ready.done() else None)
        if not ready.done() or failure is not None:
            ready.cancel()
            await self.stop()
            raise failure or EngineDead(f"engine {self._name} was stopped while it started")
        self._facts = ready.result()
        return self._facts

    def facts(self) -> EngineFacts:
        """What a client needs to know. Raises EngineDead if the engine has given up or does not
        serve yet.
        """
        if self._failure is not None:
            raise EngineDead(f"engine {self._name} has given up: {self._failure}")
        if self._facts is None:
            raise EngineDead(f"engine {self._name} is still starting")
        return self._facts

    async def stats(self) -> dict[str, Any]:
        """Figures of every actor; None for one that is being made again."""
        actors = {keeper.label: keeper for keeper in self._keepers()}
        figures = await asyncio.gather(*(self._stats_of(keeper) for keeper in actors.values()))
        restarts = {label: keeper.num_restarts for label, keeper in actors.items()}
        return {**dict(zip(actors, figures, strict=True)), "restarts": restarts}

    async def health(self) -> dict[str, dict[str, Any]]:
        """Process, incarnation and whether it serves, by actor."""
        return {
            keeper.label: {
                "pid": None if keeper.actor is None else keeper.actor.pid,
                "incarnation": keeper.incarnation,
                "serves": keeper.actor is not None,
            }
            for keeper in self._keepers()
        }

    async def flush(self, l3: bool = False) -> dict[str, Any]:
        """Drop what L1 and L2 hold and no request uses; with `l3` also this namespace's objects.
        Says what went.
        """
        dropped: dict[str, Any] = {
            "l1_pages": await (await self._scheduler.serving()).call("flush")
        }
        if self._host is not None:
            host = await self._host.serving()
            dropped["l2_pages"] = await host.call("flush")
            if l3 and self._storage.current is not None:
                dropped["l3"] = await host.call("flush_storage")
        return dropped

    async def attach_storage(self, section: Mapping[str, Any]) -> dict[str, Any]:
        """Use the backend of this section `cache.l3` from now on, instead of the one in use, if
        there is one.

        Raises ConfigError if the section is wrong or its backend cannot work, EngineDead if it
        cannot be put to use in time; then the engine goes on with what it had.
        """
        config = replace_l3(self._config, section)
        if not config.has_l3 or config.cache.l3 is None:
            raise ConfigError(
                "cache.prefix_caching is false, so that L3 has no effect. Start the engine with "
                "true."
            )
        former = await self._storage.attach(config.cache.l3)
        return {"attached": config.cache.l3.backend, "detached": former}

    async def detach_storage(self) -> dict[str, Any]:
        """Go on without L3; nothing happens if there is none. What it holds stays there."""
        return {"detached": await self._storage.detach()}

    async def explain(self, request_id: str) -> dict[str, Any] | None:
        """Where the prompt of a recent request came from, by token range; None if it is not known."""
        return await (await self._scheduler.serving()).call("explain", request_id)

    async def check(self) -> None:
        """Raise AccountingError if an invariant of the Scheduler or of HostMemory does not hold."""
        for keeper in (self._scheduler, self._host):
            if keeper is not None:
                await (await keeper.serving()).call("check")

    async def wait_all_serving(self) -> None:
        """Return once every actor serves and is attached to the Scheduler."""
        await self._wait_attached()

    async def shutdown(self) -> None:
        """A clean stop: writes to L3 drain for a bounded time, then every actor ends."""
        if not self._is_stopping and self._failure is None:
            await self._drain()
        await self.stop()

    async def stop(self) -> None:
        """End every actor now and remove what the engine left on disk."""
        self._is_stopping = True
        if self._guard is not None:
            self._guard.cancel()
            await asyncio.gather(self._guard, return_exceptions=True)
        await self._storage.end()
        self._folder.remove()

    # Keepers --------------------------------------------------------------------------------------

    def _keepers(self) -> list[Keeper]:
        storage = self._storage.current
        return [*self._lasting_keepers(), *([] if storage is None else [storage.keeper])]

    def _lasting_keepers(self) -> list[Keeper]:
        """Of the actors without which there is no engine."""
        return [self._scheduler, *([] if self._host is None else [self._host]), *self._gpus]

    def _keeper(self, kind: ActorKind, bring_up: Any) -> Keeper:
        async def make(incarnation: int) -> RunningActor:
            storage = self._storage.current
            if kind is ActorKind.HOST_MEMORY and storage is not None and incarnation > 1:
                # The storage actor may still be writing what the last HostMemory ordered.
                await storage.keeper.end("its HostMemory is made again")
            name = actor_name(self._name, kind)
            return await self._spawner.spawn(kind, name, name=self._name, incarnation=incarnation)

        on_end = self._arenas.withdraw if kind is ActorKind.HOST_MEMORY else lambda: None
        return Keeper(kind.value, make, bring_up, on_end=on_end, supervision=self._supervision)

    def _gpu_keeper(self, rank: int) -> Keeper:
        async def make(incarnation: int) -> RunningActor:
            name = actor_name(self._name, ActorKind.GPU, rank)
            return await self._spawner.spawn(
                ActorKind.GPU,
                name,
                config=self._config,
                name=self._name,
                rank=rank,
                incarnation=incarnation,
            )

        async def bring_up(actor: RunningActor, incarnation: int) -> None:
            await self._bring_up_gpu(actor, rank)

        def on_end() -> None:
            self._arenas.forget_holder(rank)

        return Keeper(f"gpu{rank}", make, bring_up, on_end=on_end, supervision=self._supervision)

    async def _watch(self, keepers: list[asyncio.Task[None]]) -> None:
        """End the engine when one of its actors cannot be kept."""
        kills = asyncio.create_task(self._carry_out_kills())
        try:
            done, _ = await asyncio.wait({*keepers, kills}, return_when=asyncio.FIRST_EXCEPTION)
            self._failure = next(error for task in done if (error := task.exception()) is not None)
            logger.error("engine %s gives up: %s", self._name, self._failure)
        finally:
            for task in (*keepers, kills):
                task.cancel()
            await asyncio.gather(*keepers, kills, return_exceptions=True)

    async def _carry_out_kills(self) -> None:
        """The Scheduler condemns ranks that are overdue."""
        while True:
            scheduler = await self._scheduler.serving()
            try:
                order = await scheduler.call("next_kill")
            except EngineDead:
                await asyncio.sleep(self._supervision.first_backoff_s)
                continue
            self._gpus[order.rank].condemn(order.reason, order.incarnation)

    # Bringing up ----------------------------------------------------------------------------------

    async def _bring_up_gpu(self, actor: RunningActor, rank: int) -> None:
        # One made again may find less memory, or more: it is told what its pages have to be.
        facts: GpuFacts = await actor.call("load", self._num_pages)
        self._note_loaded(rank, facts)
        await self._all_loaded.wait()
        if self._host is not None:
            arena, epoch = await self._arenas.current()
            own: ArenaLocation = await actor.call("attach_arena", arena)
            self._arenas.note_holder(rank, own, epoch)
        await self._scheduler.serving()
        await actor.call(
            "start", GpuSetup(scheduler_address=self._scheduler_address, secret=self._secret)
        )

    def _note_loaded(self, rank: int, facts: GpuFacts) -> None:
        """All ranks, and all their incarnations, must hold the same weights, and the pages agreed
        on.
        """
        for other, known in self._gpu_facts.items():
            if known.fingerprint != facts.fingerprint:
                raise ConfigError(
                    f"rank {rank} loaded other weights from {self._config.model.path} than rank "
                    f"{other} "
                    f"({facts.fingerprint.hex()[:16]} and {known.fingerprint.hex()[:16]}). "
                    "Give every node the same checkpoint and restart the engine."
                )
        if self._num_pages is not None and facts.num_pages < self._num_pages:
            raise ConfigError(
                f"rank {rank} was made again with {facts.num_pages} L1 pages; the Scheduler "
                f"counts on "
                f"{self._num_pages}. Set cache.l1.num_pages to what every rank can hold and "
                f"restart the engine."
            )
        self._gpu_facts[rank] = facts
        if len(self._gpu_facts) == len(self._gpus) and self._num_pages is None:
            self._num_pages = min(facts.num_pages for facts in self._gpu_facts.values())
            self._all_loaded.set()

    async def _bring_up_scheduler(self, actor: RunningActor, incarnation: int) -> None:
        facts = await self._engine_facts()
        settings = scheduler_settings(
            self._config, facts.layout, facts.num_pages, facts.max_model_len, facts.vocab_size
        )
        setup = SchedulerSetup(
            settings=settings, addresses=(self._scheduler_address,), secret=self._secret
        )
        await actor.call("start", setup)

    async def _bring_up_host(self, actor: RunningActor, incarnation: int) -> None:
        facts = await self._engine_facts()
        held = self._arenas.held()
        if held is None:
            arena = await actor.call(
                "create_arena", facts.layout, facts.arena_bytes, self._config.arena_folder
            )
        else:
            arena = await actor.call("adopt_arena", held)
        setup = HostMemorySetup(
            settings=host_settings(self._config, has_storage=self._storage.current is not None),
            scheduler_address=self._scheduler_address,
            storage_address=self._storage_address,
            secret=self._secret,
        )
        await actor.call("start", setup)
        for rank in self._arenas.publish(arena, is_new=held is None):
            self._gpus[rank].condemn("the arena that it maps is not in use any more")

    # Storage, for its switch ----------------------------------------------------------------------

    async def make_storage(self, number: int, incarnation: int) -> RunningActor:
        """See `StorageSurroundings`."""
        name = actor_name(self._name, ActorKind.STORAGE, number)
        return await self._spawner.spawn(
            ActorKind.STORAGE, name, name=self._name, incarnation=incarnation
        )

    async def open_storage(self, actor: RunningActor, section: L3Section) -> None:
        """See `StorageSurroundings`."""
        facts = await self._engine_facts()
        arena, _ = await self._arenas.current()
        setup = StorageSetup(
            backend=section,
            namespace=make_namespace(self._gpu_facts[0].fingerprint, _WEIGHT_VERSION, facts.layout),
            arena=arena,
            host_address=self._storage_address,
            secret=self._secret,
        )
        await actor.call("start", setup)

    async def tell_host(self, method: str, *arguments: Any) -> Any:
        """See `StorageSurroundings`."""
        assert self._host is not None, "there is no L3 without L2"
        while True:
            host = await self._host.serving()
            try:
                return await host.call(method, *arguments)
            except EngineDead:
                await asyncio.sleep(self._supervision.first_backoff_s)

    # What the actors share ------------------------------------------------------------------------

    async def _engine_facts(self) -> EngineFacts:
        """Once every rank has loaded."""
        await self._all_loaded.wait()
        first = self._gpu_facts[0]
        num_pages = self._num_pages
        assert num_pages is not None, "every rank has loaded"
        return EngineFacts(
            name=self._name,
            supervisor_pid=os.getpid(),
            client_address=self._scheduler_address,
            secret=self._secret,
            model_path=os.path.abspath(self._config.model.path),
            max_model_len=self._config.max_model_len(first.max_position_embeddings, num_pages),
            vocab_size=first.vocab_size,
            eos_token_ids=first.eos_token_ids,
            layout=first.layout,
            num_pages=num_pages,
            arena_bytes=host_bytes_per_node(self._config, first.layout, num_pages, len(self._gpus)),
        )

    @property
    def _scheduler_address(self) -> str:
        return f"unix:{self._folder.path}/scheduler.sock"

    @property
    def _storage_address(self) -> str:
        return f"unix:{self._folder.path}/host.sock"

    # Waiting --------------------------------------------------------------------------------------

    async def _wait_ready(self) -> EngineFacts:
        await self._wait_attached()
        return await self._engine_facts()

    async def _wait_attached(self) -> None:
        serving: list[Awaitable[Any]] = [keeper.serving() for keeper in self._lasting_keepers()]
        storage = self._storage.current
        if storage is not None:
            serving.append(storage.serving())
        await asyncio.gather(*serving)
        waits: list[Awaitable[Any]] = [(await self._scheduler.serving()).call("wait_ready")]
        if self._host is not None and storage is not None:
            waits.append(storage.unless_given_up(self.tell_host("wait_storage")))
        await asyncio.gather(*waits)

    async def _drain(self) -> None:
        """Let copies to L2 end, then writes to L3."""
        timeout_s = self._supervision.drain_timeout_s
        with contextlib.suppress(TimeoutError, EngineDead):
            async with asyncio.timeout(timeout_s):
                scheduler = self._scheduler.actor
                if scheduler is not None:
                    await scheduler.call("drain", timeout_s)
                host = None if self._host is None else self._host.actor
                if host is not None and not await host.call("drain", timeout_s):
                    logger.warning(
                        "engine %s stops before all pages were written to L3", self._name
                    )

    async def _stats_of(self, keeper: Keeper) -> dict[str, Any] | None:
        actor = keeper.actor
        if actor is None:
            return None
        try:
            return await actor.call("stats")
        except EngineDead:
            return None
