"""The GPU actor: the process of one rank, from loading its weights to its end.

Its event loop serves control calls only; `RankThreads` carry out the Scheduler's plans. Torch is
imported only when a model is loaded: processes that merely start this actor do without it.
"""

import asyncio
import gc
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from raydix.errors import AccountingError
from raydix.ids import Rank
from raydix.runtime.actors.arena_copies import ArenaCopies
from raydix.runtime.actors.gpu_metrics import GPU_METRICS
from raydix.runtime.actors.gpu_model import (
    BuildModel,
    GpuModel,
    LoadedGpuModel,
    LoadReport,
    RankPlace,
)
from raydix.runtime.actors.link_watch import ALONE_S
from raydix.runtime.actors.links.blocking_link import connect_blocking
from raydix.runtime.actors.links.link import BlockingLink
from raydix.runtime.actors.metrics_export import MetricsExporter
from raydix.runtime.actors.process import exit_process
from raydix.runtime.actors.rank_threads import FINISH_S, RankThreads
from raydix.runtime.actors.redial import RECONNECT_S, Dial
from raydix.runtime.actors.torch_builder import build_torch_model
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.garbage import spare_long_lived_objects
from raydix.runtime.messages.hello import Hello, Role
from raydix.runtime.metrics import Sample, read_samples
from raydix.runtime.phases import phase
from raydix.runtime.tiers.expert_store import ExpertMemory
from raydix.runtime.tiers.host_arena import ArenaLocation
from raydix.runtime.tiers.transfers import TransferDone

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSetup:
    """What a GPU actor starts with."""

    scheduler_address: str
    secret: bytes = field(repr=False)


class GpuActor:
    """Owns: one device's weights, the mapping of the arena, and the threads that serve, if any.

    From `give_back` to the next `prepare` it sleeps: it has no pools and no threads.
    """

    def __init__(
        self,
        *,
        config: EngineConfig,
        name: str,
        rank: int,
        incarnation: int,
        meeting: str | None = None,
        expert_memory: ExpertMemory | None = None,
        build_model: BuildModel = build_torch_model,
        on_fatal: Callable[[], None] = exit_process,
        exporter: MetricsExporter | None = None,
    ) -> None:
        """`name` is the engine's; `meeting`, `expert_memory`: see `RankPlace`.

        A thread that cannot go on logs why and calls `on_fatal`.
        """
        self._config = config
        self._name = name
        self._rank = rank
        self._incarnation = incarnation
        self._build_model = build_model
        self._on_fatal = on_fatal
        self._exporter = exporter
        self._place = RankPlace(
            rank=rank, device_index=rank, meeting=meeting, expert_memory=expert_memory
        )

        self._loaded: LoadedGpuModel | None = None
        self._copies = ArenaCopies()
        self._threads: RankThreads | None = None
        self._resting: GpuModel | None = None
        """The model whose transfer engine is kept while it sleeps; None: there is none."""
        self._load_s = 0.0

    def __repr__(self) -> str:
        return f"GpuActor({self._name}, rank {self._rank}, {self._config.model.device})"

    def use_device(self, index: int) -> None:
        """Load on this CUDA device instead of the one that is numbered like the rank."""
        self._place = replace(self._place, device_index=index)

    async def load(self) -> LoadReport:
        """Wait for the ranks that this one steps with, and load the weights.

        Raises CheckpointError or ConfigError.
        """
        began_s = time.monotonic()
        self._loaded = await asyncio.to_thread(self._build_model, self._config, self._place)
        self._load_s = time.monotonic() - began_s
        return self._loaded.report

    async def prepare(self, num_pages: tuple[int, ...]) -> None:
        """Make pools of so many usable pages per KV group, and all else that steps need.

        Weights that were parked come back first. Raises ConfigError if there is no room.
        """
        await asyncio.to_thread(self._prepare, num_pages)

    async def attach_arena(self, location: ArenaLocation) -> ArenaLocation:
        """Map the arena. Returns where this process offers it, should its HostMemory end.

        If it is mapped already, and only its HostMemory is a new one, nothing changes.
        """
        return await asyncio.to_thread(self._attach, location)

    async def start(self, setup: GpuSetup) -> None:
        """Connect to the Scheduler, and to each that follows it, and carry out its plans.

        Returns once nothing is left that would take longer for the first time.
        """
        hello = Hello(
            role=Role.GPU,
            name=f"gpu{self._rank}",
            incarnation=self._incarnation,
            pid=os.getpid(),
            rank=Rank(self._rank),
        )
        address, secret = setup.scheduler_address, setup.secret
        spare_long_lived_objects()
        self.serve(lambda stop: connect_blocking(address, hello, secret, RECONNECT_S, stop))
        with phase(logger, "steps rehearsed"):
            await asyncio.to_thread(self._serving().wait_rehearsed)
        if self._exporter is not None:
            self._exporter.start(self._samples)

    def serve(self, dial: Dial[BlockingLink]) -> None:
        """Start with any way to reach a Scheduler."""
        self._serving().start(dial)

    async def give_back(self, with_weights: bool) -> dict[str, int]:
        """Hang up, and give back pages and graphs, and the weights if they are to go, too.

        The Scheduler has nothing in flight. Returns the bytes of the device that were held before,
        and that are still held. The second time nothing is left to give.
        """
        if self._exporter is not None:
            await self._exporter.stop()
        return await asyncio.to_thread(self._give_back, with_weights)

    async def drain(self) -> None:
        """Return once every step and copy received so far has ended, and been reported.

        That experts were copied is said with the result of the next step.
        """
        if self._threads is not None:
            await asyncio.to_thread(self._threads.drain)

    async def stats(self) -> dict[str, Any]:
        """Counters since it began to serve, and whether the Scheduler is connected."""
        return self._figures()

    def _samples(self) -> list[Sample]:
        return read_samples(GPU_METRICS, self._figures(), (str(self._rank),))

    def _figures(self) -> dict[str, Any]:
        return {
            "rank": self._rank,
            "incarnation": self._incarnation,
            "pid": os.getpid(),
            "load_s": self._load_s,
            "held_bytes": self._held_bytes(),
            "connected": False,
            **({} if self._threads is None else self._threads.stats()),
        }

    async def shutdown(self) -> None:
        """Close the link, finish what is in flight and end the threads."""
        if self._exporter is not None:
            await self._exporter.stop()
        await asyncio.to_thread(self._shutdown)

    def _serving(self) -> RankThreads:
        if self._threads is None:
            raise AccountingError(f"{self!r} is asked to serve, and is not prepared")
        return self._threads

    def _prepare(self, num_pages: tuple[int, ...]) -> None:
        assert self._loaded is not None, "load comes first"
        with phase(logger, "weights brought back"):
            self._loaded.weights.bring_back()
        model = self._loaded.prepare(num_pages)
        resting, self._resting = self._resting, None
        if resting is not None and resting.make_transfers is not model.make_transfers:
            self._copies.rest()
        alone = self._config.parallel.ranks_per_group == 1
        self._threads = RankThreads(
            repr(self),
            self._rank,
            model,
            self._copies,
            patience_s=ALONE_S if alone else 2 * FINISH_S,
            on_fatal=self._on_fatal,
        )

    def _attach(self, location: ArenaLocation) -> ArenaLocation:
        threads = self._serving()
        # The thread may be any of a pool's, which starts on the first device.
        threads.model.enter_thread()

        make_transfers = threads.model.make_transfers
        if make_transfers is None:
            raise AccountingError(f"{self!r} has no KV to copy")
        with phase(logger, "arena mapped"):
            return self._copies.attach(
                location,
                lambda arena: make_transfers(arena, self._note_copied, self._copies_failed),
            )

    def _note_copied(self, done: TransferDone) -> None:
        """Report a copy that has ended; when the rank falls asleep nobody asks for it any more."""
        if (threads := self._threads) is not None:
            threads.reports.add(done)

    def _copies_failed(self, error: BaseException) -> None:
        # Read once: it may be cleared meanwhile.
        if (threads := self._threads) is not None:
            threads.copies_failed(error)
        else:
            logger.error("%r cannot copy: %s", self, error)
            self._on_fatal()

    def _give_back(self, with_weights: bool) -> dict[str, int]:
        held_bytes = self._held_bytes()
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.rest()
            self._copies.drain()
            threads.close_experts()
            if threads.model.give_back():
                self._resting = threads.model
            else:
                self._copies.rest()
        if with_weights and self._loaded is not None:
            self._loaded.weights.park()
        del threads
        # What was there when it began to serve counts as long-lived; some of it is garbage now.
        gc.unfreeze()
        # Looked at now, the rest need not be at the wake.
        spare_long_lived_objects()
        return {"held_bytes": held_bytes, "left_bytes": self._held_bytes()}

    def _held_bytes(self) -> int:
        """What pages and weights take of the device."""
        weights = 0 if self._loaded is None else self._loaded.weights.held_bytes
        return weights + (0 if self._threads is None else self._threads.model.pool_bytes)

    def _shutdown(self) -> None:
        if self._threads is not None:
            self._threads.stop()
        self._copies.close()
        if self._threads is not None:
            self._threads.close_experts()
