"""The actors of one engine: how an incarnation of each is started and made to serve."""

import asyncio
import contextlib
import logging
import os
import secrets
from typing import Any

from raydix.errors import BadRequest, EngineDead
from raydix.runtime.actors.engine_record import EngineRecord
from raydix.runtime.actors.gpu import GpuSetup
from raydix.runtime.actors.gpu_model import LoadReport
from raydix.runtime.actors.kv_publisher import KvPublisherSetup
from raydix.runtime.actors.links.tls import TlsFiles
from raydix.runtime.actors.patience import within
from raydix.runtime.actors.process import ProcessId
from raydix.runtime.actors.pulls.pull_settings import PullSetup
from raydix.runtime.actors.scheduler import SchedulerSetup
from raydix.runtime.actors.supervision.arena_registry import ArenaRegistry, PlannedArena
from raydix.runtime.actors.supervision.core_settings import host_settings, scheduler_settings
from raydix.runtime.actors.supervision.engine_facts import ClientFacts, EngineFacts
from raydix.runtime.actors.supervision.engine_sleep import EngineSleep
from raydix.runtime.actors.supervision.keeper import BringUp, Keeper
from raydix.runtime.actors.supervision.l2_plan import Guest, L2Plan
from raydix.runtime.actors.supervision.loaded_ranks import LoadedRanks
from raydix.runtime.actors.supervision.node_l2 import NodeL2
from raydix.runtime.actors.supervision.rank_group import RankGroup
from raydix.runtime.actors.supervision.restarts import Supervision
from raydix.runtime.actors.supervision.spawn import (
    ActorKind,
    EngineSpawner,
    RunningActor,
    actor_name,
)
from raydix.runtime.config.capacity import host_bytes_per_node
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.l2 import L2Section
from raydix.runtime.config.pool_sizes import max_context_pages
from raydix.runtime.model.grammars.compiling import CompilerSetup
from raydix.runtime.phases import phase
from raydix.runtime.scheduler.phase import Phase
from raydix.runtime.storage.namespace import Namespace, make_namespace
from raydix.runtime.tiers.expert_store import ExpertMemory
from raydix.runtime.tiers.host_arena import ArenaLocation

logger = logging.getLogger(__name__)

_SECRET_BYTES = 32
_LEAVE_S = 2.0
_WEIGHT_VERSION = "0"
"""Weights do not change while an engine runs."""


class EngineActors:
    """Owns: the keeper of each actor, and the addresses and the secret that all incarnations share.

    That of L2 keeps an actor which other engines of the node may keep, too.
    """

    def __init__(
        self,
        *,
        name: str,
        config: EngineConfig,
        spawner: EngineSpawner,
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
        self.record = EngineRecord(
            control_address=f"unix:{folder}/control.sock",
            client_address=f"unix:{folder}/scheduler.sock",
            secret=self._secret,
        )

        num_ranks = config.parallel.num_ranks
        self._loaded = LoadedRanks(num_ranks, config.model.path)
        self._arenas = ArenaRegistry()
        self.sleep = EngineSleep(name, supervision)
        # Here, so that it outlives every rank.
        self._expert_memory = ExpertMemory.create() if config.stores_experts else None
        self.gpus = [
            keeper
            for first in range(0, num_ranks, config.parallel.ranks_per_group)
            for keeper in self._rank_group(first).keepers
        ]
        self.scheduler = self._keeper(ActorKind.SCHEDULER, self._bring_up_scheduler)
        self.host: Keeper | None = None
        self._joined: ArenaLocation | None = None
        """Where the L2 that was joined last has its arena."""
        if config.has_l2 and config.cache.l2 is not None:
            self._node_l2 = self._find_l2(config.cache.l2)
            self.host = self._keeper(ActorKind.HOST_MEMORY, self._bring_up_host)
        self.events = (
            self._keeper(ActorKind.EVENTS, self._bring_up_events) if config.cache.events else None
        )

    def _find_l2(self, section: L2Section) -> NodeL2:
        """Tell by what this engine finds its L2."""
        guest = Guest(
            engine=self._name,
            process=ProcessId.of(os.getpid()),
            scheduler_address=self.record.client_address,
            secret=self._secret,
            keep_s=section.keep_s,
        )
        return NodeL2(
            self._spawner,
            self._supervision,
            guest,
            section,
            model_path=self._config.model.path,
            log_path=self._log_path,
        )

    def all(self) -> list[Keeper]:
        """The keepers of all actors; that of events only if there are any."""
        return [*self.lasting(), *([] if self.events is None else [self.events])]

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
        await asyncio.gather(*(keeper.serving() for keeper in self.lasting()))
        if self.host is not None and (failure := await self._tell(self.host, "wait_storage")):
            raise EngineDead(failure)
        if self.events is not None:
            await self.events.serving()
        await self._tell(self.scheduler, "wait_ready")

    async def ask_host(self, method: str, *arguments: Any) -> Any:
        """Call L2 once. Raises BadRequest if there is none, EngineDead if it ends meanwhile."""
        if self.host is None:
            raise BadRequest(f"Engine {self._name} has no L2. Set cache.l2.")
        return await (await self.host.serving()).call(method, *arguments)

    async def leave_l2(self) -> None:
        """Tell L2 that this engine ends, so that nobody dials its Scheduler any more; bounded."""
        if self.host is not None and self.host.actor is not None:
            with contextlib.suppress(EngineDead, TimeoutError):
                await within(_LEAVE_S, self.host.actor.call("leave", self._node_l2.guest.name))

    def close(self) -> None:
        """Give back what is kept for the actors, all of which have ended. The second time nothing.

        A start that fails stops the engine, and so does whoever asked for the start.
        """
        memory, self._expert_memory = self._expert_memory, None
        if memory is not None:
            memory.close()

    async def carry_out_sleep(self) -> None:
        """Have ranks give back memory and take it again, as the Scheduler says, for ever."""
        await self.sleep.carry_out(self.scheduler, self.gpus, self._start_gpu)

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
            if kind is ActorKind.HOST_MEMORY:
                return await self._join_l2()
            return await self._spawn(kind, None, incarnation=incarnation)

        def on_end(_incarnation: int, _error: Exception | None) -> None:
            if kind is ActorKind.HOST_MEMORY:
                self._arenas.withdraw()

        return Keeper(kind.value, make, bring_up, on_end=on_end, supervision=self._supervision)

    async def _join_l2(self) -> RunningActor:
        actor, self._joined = await self._node_l2.join(
            self._planned_l2, self._planned_arena, self._config.arena_folder, self._arenas.held
        )
        return actor

    async def _planned_l2(self) -> L2Plan:
        """The L2 that fits what all ranks have loaded."""
        facts = await self.facts()
        l2 = self._config.cache.l2
        assert l2 is not None, "the engine has L2"
        assert facts.arena_bytes is not None, "L2 has a size"
        return L2Plan(
            model_path=facts.client.model_path,
            namespace=await self._namespace(),
            layout=facts.layout,
            size_bytes=facts.arena_bytes,
            is_size_fixed=l2.bytes_per_node is not None,
            floor_bytes=l2.floor_bytes,
            total_bytes=l2.total_bytes_per_node,
            settings=host_settings(self._config, facts.layout),
            l3=self._config.cache.l3 if self._config.has_l3 else None,
            folder=self._config.arena_folder,
            pull=await self._pull_setup(),
        )

    async def _spawn(self, kind: ActorKind, number: int | None, **arguments: Any) -> RunningActor:
        name = actor_name(self._name, kind, number)
        with phase(logger, f"process of {kind.value}{'' if number is None else number} started"):
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
            may_start=self.sleep.wait_awake,
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
            # Before it can copy: whoever takes the arena over waits for it.
            await self.ask_host("note_process", self._node_l2.guest.name, actor.pid)
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
            phase=Phase.ASLEEP if self.sleep.is_asleep else Phase.AWAKE,
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
        arena = self._joined
        assert arena is not None, "an engine joins an L2 before it uses it"
        for rank in self._arenas.publish(arena):
            self.gpus[rank].condemn("the arena that it maps is not in use any more")
