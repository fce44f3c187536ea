"""The actors of one engine: how an incarnation of each is started and made to serve."""

import asyncio
import os
import secrets
from typing import Any

from raydix.errors import AccountingError, EngineDead
from raydix.ids import SchedulerName
from raydix.runtime.actors.engine_record import EngineRecord
from raydix.runtime.actors.gpu import GpuSetup
from raydix.runtime.actors.gpu_model import LoadReport
from raydix.runtime.actors.host_memory import HostMemorySetup
from raydix.runtime.actors.kv_publisher import KvPublisherSetup
from raydix.runtime.actors.links.tls import TlsFiles
from raydix.runtime.actors.pulls.pull_settings import PullSetup
from raydix.runtime.actors.scheduler import SchedulerSetup
from raydix.runtime.actors.storage import StorageSetup
from raydix.runtime.actors.supervision.arena_registry import ArenaRegistry, PlannedArena
from raydix.runtime.actors.supervision.core_settings import host_settings, scheduler_settings
from raydix.runtime.actors.supervision.engine_facts import ClientFacts, EngineFacts
from raydix.runtime.actors.supervision.keeper import BringUp, Keeper
from raydix.runtime.actors.supervision.loaded_ranks import LoadedRanks
from raydix.runtime.actors.supervision.rank_group import RankGroup
from raydix.runtime.actors.supervision.restarts import Supervision
from raydix.runtime.actors.supervision.spawn import ActorKind, RunningActor, Spawner, actor_name
from raydix.runtime.actors.supervision.storage_switch import StorageSwitch
from raydix.runtime.config.capacity import host_bytes_per_node
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.l3 import L3Section
from raydix.runtime.config.pool_sizes import max_context_pages
from raydix.runtime.model.grammars.compiling import CompilerSetup
from raydix.runtime.storage.namespace import Namespace, make_namespace
from raydix.runtime.tiers.expert_store import ExpertMemory
from raydix.runtime.tiers.host_arena import ArenaLocation

_SECRET_BYTES = 32
_WEIGHT_VERSION = "0"
"""Weights do not change while an engine runs."""


class EngineActors:
    """Owns: the keeper of each actor, and the addresses and the secret that all incarnations share.

    Is the `SwitchedEngine` of its storage switch.
    """

    def __init__(
        self,
        *,
        name: str,
        config: EngineConfig,
        spawner: Spawner,
        supervision: Supervision,
        folder: str,
        log_path: str,
        arena: PlannedArena | None = None,
    ) -> None:
        """`folder`: a private one, for sockets and for the files by which ranks meet.

        `log_path`: see `Spawner`. `arena`: as far as it is known before ranks have loaded, so that
        taking its memory need not wait for them.
        """
        self._name = name
        self._config = config
        self._spawner = spawner
        self._supervision = supervision
        self._folder = folder
        self._log_path = log_path
        self._planned_arena = arena
        self._secret = secrets.token_bytes(_SECRET_BYTES)
        self._storage_address = f"unix:{folder}/host.sock"
        self.record = EngineRecord(
            control_address=f"unix:{folder}/control.sock",
            client_address=f"unix:{folder}/scheduler.sock",
            secret=self._secret,
        )

        num_ranks = config.parallel.num_ranks
        self._loaded = LoadedRanks(num_ranks, config.model.path)
        self._arenas = ArenaRegistry()
        # Here, so that it outlives every rank.
        self._expert_memory = ExpertMemory.create() if config.stores_experts else None
        self.gpus = [
            keeper
            for first in range(0, num_ranks, config.parallel.ranks_per_group)
            for keeper in self._rank_group(first).keepers
        ]
        self.scheduler = self._keeper(ActorKind.SCHEDULER, self._bring_up_scheduler)
        self.host = (
            self._keeper(ActorKind.HOST_MEMORY, self._bring_up_host) if config.has_l2 else None
        )
        self.events = (
            self._keeper(ActorKind.EVENTS, self._bring_up_events) if config.cache.events else None
        )
        self.storage = StorageSwitch(self, supervision)

    def all(self) -> list[Keeper]:
        """The keepers of all actors; those of storage and of events only while there are any."""
        storage = self.storage.current
        others = [self.events, None if storage is None else storage.keeper]
        return [*self.lasting(), *[keeper for keeper in others if keeper is not None]]

    def lasting(self) -> list[Keeper]:
        """The keepers of the actors without which there is no engine."""
        return [self.scheduler, *([] if self.host is None else [self.host]), *self.gpus]

    async def facts(self) -> EngineFacts:
        """What is known of the engine, once every rank has loaded."""
        report, num_pages = await self._loaded.agreed()
        arena_bytes = host_bytes_per_node(
            self._config, report.layout, num_pages, self._config.parallel.dp
        )
        num_context = max_context_pages(
            report.layout,
            num_pages,
            is_chunked=self._config.scheduler.chunked_prefill_tokens is not None,
        )
        client = ClientFacts(
            name=self._name,
            model_path=self._config.model.path,
            fingerprint=report.fingerprint.hex(),
            max_model_len=self._config.max_model_len(report.max_position_embeddings, num_context),
            vocab_size=report.vocab_size,
            max_waiting_requests=self._config.scheduler.max_waiting_requests,
            eos_token_ids=report.eos_token_ids,
            tool_format=self._config.model.tool_format,
            reasoning_format=self._config.model.reasoning_format,
        )
        return EngineFacts(
            client=client,
            record=self.record,
            layout=report.layout,
            num_pages=num_pages,
            arena_bytes=arena_bytes,
        )

    async def wait_attached(self) -> None:
        """Return once every actor serves and has met those it works with."""
        await asyncio.gather(*(keeper.serving() for keeper in self.lasting()), self.storage.met())
        if self.events is not None:
            await self.events.serving()
        await self._tell(self.scheduler, "wait_ready")

    async def make_storage(self, number: int, incarnation: int) -> RunningActor:
        """Start an incarnation of a storage actor."""
        return await self._spawn(ActorKind.STORAGE, number, incarnation=incarnation)

    async def open_storage(self, actor: RunningActor, section: L3Section) -> None:
        """Tell a storage actor the ranks' layout and the arena, and let it open its backend."""
        arena, _ = await self._arenas.current()
        setup = StorageSetup(
            backend=section,
            namespace=await self._namespace(),
            arena=arena,
            host_address=self._storage_address,
            secret=self._secret,
        )
        await actor.call("start", setup)

    async def tell_host(self, method: str, *arguments: Any) -> Any:
        """Call a method of HostMemory, whichever incarnation it is."""
        assert self.host is not None, "there is no L3 without L2"
        return await self._tell(self.host, method, *arguments)

    def close(self) -> None:
        """Give back what is kept for the actors, all of which have ended. The second time nothing.

        A start that fails stops the engine, and so does whoever asked for the start.
        """
        memory, self._expert_memory = self._expert_memory, None
        if memory is not None:
            memory.close()

    async def _tell(self, keeper: Keeper, method: str, *arguments: Any) -> Any:
        """Call an actor, whichever incarnation answers."""
        while True:
            actor = await keeper.serving()
            try:
                return await actor.call(method, *arguments)
            except EngineDead:
                # It ended meanwhile: the call goes to the next incarnation.
                await asyncio.sleep(self._supervision.first_backoff_s)

    def _keeper(self, kind: ActorKind, bring_up: BringUp) -> Keeper:
        async def make(incarnation: int) -> RunningActor:
            storage = self.storage.current
            if kind is ActorKind.HOST_MEMORY and storage is not None and incarnation > 1:
                # The storage actor may still be writing what the last HostMemory ordered.
                await storage.keeper.end("its HostMemory is restarted")

            return await self._spawn(kind, None, incarnation=incarnation)

        def on_end(_incarnation: int, _error: Exception | None) -> None:
            if kind is ActorKind.HOST_MEMORY:
                self._arenas.withdraw()

        return Keeper(kind.value, make, bring_up, on_end=on_end, supervision=self._supervision)

    async def _loaded_arena(self) -> PlannedArena:
        """The arena that fits what all ranks have loaded."""
        facts = await self.facts()
        assert facts.arena_bytes is not None, "the engine has L2"
        return PlannedArena(layout=facts.layout, size_bytes=facts.arena_bytes)

    async def _spawn(self, kind: ActorKind, number: int | None, **arguments: Any) -> RunningActor:
        name = actor_name(self._name, kind, number)
        return await self._spawner.spawn(
            kind, name, log_path=self._log_path, name=self._name, **arguments
        )

    def _rank_group(self, first_rank: int) -> RankGroup:
        return RankGroup(
            range(first_rank, first_rank + self._config.parallel.ranks_per_group),
            self._make_gpu,
            self._load_gpu,
            self._start_gpu,
            on_end=self._arenas.forget_holder,
            supervision=self._supervision,
        )

    async def _make_gpu(self, rank: int, incarnation: int) -> RunningActor:
        # One file per incarnation: what ranks have left in the last one means nothing to the next.
        width = self._config.parallel.ranks_per_group
        meeting = f"{self._folder}/group{rank // width}-{incarnation}"
        return await self._spawn(
            ActorKind.GPU,
            rank,
            config=self._config,
            rank=rank,
            incarnation=incarnation,
            meeting=meeting if width > 1 else None,
            expert_memory=self._expert_memory,
        )

    async def _load_gpu(self, rank: int, actor: RunningActor) -> None:
        report: LoadReport = await actor.call("load")
        self._loaded.note(rank, report)

    async def _start_gpu(self, rank: int, actor: RunningActor) -> None:
        _, num_pages = await self._loaded.agreed()
        await actor.call("prepare", num_pages)

        if self.host is not None:
            arena, epoch = await self._arenas.current()
            own: ArenaLocation = await actor.call("attach_arena", arena)
            self._arenas.note_holder(rank, own, epoch)

        await self.scheduler.serving()
        setup = GpuSetup(scheduler_address=self.record.client_address, secret=self._secret)
        await actor.call("start", setup)

    async def _bring_up_scheduler(self, actor: RunningActor, incarnation: int) -> None:
        facts = await self.facts()
        report, _ = await self._loaded.agreed()
        settings = scheduler_settings(
            self._config,
            facts.layout,
            facts.num_pages,
            facts.client.max_model_len,
            facts.client.vocab_size,
            report.experts,
        )
        setup = SchedulerSetup(
            settings=settings,
            addresses=(self.record.client_address,),
            secret=self._secret,
            compilers=CompilerSetup(
                model_path=facts.client.model_path,
                vocab_size=facts.client.vocab_size,
                eos_token_ids=facts.client.eos_token_ids,
            ),
        )
        await actor.call("start", setup)

    async def _pull_setup(self) -> PullSetup | None:
        """How HostMemory exchanges pages with other nodes; None: it does not."""
        l2 = self._config.cache.l2
        if l2 is None or l2.pull is None:
            return None
        return PullSetup(
            section=l2.pull, namespace=await self._namespace(), tls=TlsFiles.of(os.environ)
        )

    async def _namespace(self) -> Namespace:
        """The namespace of the pages of L2 and L3."""
        report, _ = await self._loaded.agreed()
        return make_namespace(report.fingerprint, _WEIGHT_VERSION, report.layout)

    async def _bring_up_events(self, actor: RunningActor, incarnation: int) -> None:
        assert self._config.cache.events is not None, "there are events"
        facts = await self.facts()
        setup = KvPublisherSetup(
            section=self._config.cache.events,
            layout=facts.layout,
            num_lanes=self._config.parallel.dp,
            scheduler_address=self.record.client_address,
            secret=self._secret,
        )
        await actor.call("start", setup)

    async def _bring_up_host(self, actor: RunningActor, incarnation: int) -> None:
        # A GPU actor that outlived the last HostMemory still maps its arena, with all pages.
        held = self._arenas.held()
        if held is None:
            planned = self._planned_arena or await self._loaded_arena()
            arena = await actor.call(
                "create_arena", planned.layout, planned.size_bytes, self._config.arena_folder
            )
        else:
            arena = await actor.call("adopt_arena", held)

        facts = await self.facts()
        if self._planned_arena not in (None, await self._loaded_arena()):
            raise AccountingError(
                f"the arena was planned for {self._planned_arena}; the ranks have {facts.layout}"
            )
        setup = HostMemorySetup(
            settings=host_settings(
                self._config, facts.layout, has_storage=self.storage.current is not None
            ),
            storage_address=self._storage_address,
            storage_secret=self._secret,
            former_users=(SchedulerName(self._name),),
            pull=await self._pull_setup(),
        )
        await actor.call("start", setup)
        await actor.call(
            "follow", SchedulerName(self._name), self.record.client_address, self._secret
        )

        for rank in self._arenas.publish(arena, is_new=held is None):
            self.gpus[rank].condemn("the arena that it maps is not in use any more")
