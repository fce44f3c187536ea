"""The GPU actor: carries out the Scheduler's plans on one device, in threads.

Its event loop serves control calls only.

The launcher thread reads plans and enqueues their work. The completer thread waits for steps and
reports them. The reporter thread reports loads and backups, also when no step runs. Torch is
imported only when a model is loaded: processes that merely start this actor do without it.
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from raydix.errors import AccountingError
from raydix.ids import Rank
from raydix.runtime.actors.arena_copies import ArenaCopies
from raydix.runtime.actors.gpu_metrics import GPU_METRICS
from raydix.runtime.actors.gpu_model import (
    BuildModel,
    Experts,
    GpuModel,
    LoadedGpuModel,
    LoadReport,
    NoExperts,
    RankPlace,
    StepTimer,
)
from raydix.runtime.actors.link_watch import ALONE_S, LinkWatch
from raydix.runtime.actors.links.blocking_link import connect_blocking
from raydix.runtime.actors.links.link import BlockingLink, LinkClosed, send_unless_closed
from raydix.runtime.actors.metrics_export import MetricsExporter
from raydix.runtime.actors.plan_feed import PlanFeed
from raydix.runtime.actors.process import exit_process
from raydix.runtime.actors.redial import RECONNECT_S, Dial, redial
from raydix.runtime.actors.step_results import EnqueuedStep, StepResults
from raydix.runtime.actors.torch_builder import build_torch_model
from raydix.runtime.actors.transfer_reports import TransferReports
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.garbage import spare_long_lived_objects
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.hello import Hello, Role
from raydix.runtime.messages.plan import StepPlan
from raydix.runtime.metrics import Sample, read_samples
from raydix.runtime.phases import phase
from raydix.runtime.tiers.expert_store import ExpertMemory
from raydix.runtime.tiers.host_arena import ArenaLocation

logger = logging.getLogger(__name__)

FINISH_S = 5.0
"""How long a stopping rank waits for its steps in flight, which a peer may never have received."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSetup:
    """What a GPU actor starts with."""

    scheduler_address: str
    secret: bytes = field(repr=False)


class GpuActor:
    """Owns: one device's model, KV pools, block tables and state of requests.

    The launcher thread alone changes them.
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
        self._model: GpuModel | None = None
        self._copies = ArenaCopies()
        self._experts: Experts = NoExperts()

        self._link: BlockingLink | None = None
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._results = StepResults(rank)
        self._plans = PlanFeed(rank, self._results)
        self._reports = TransferReports(rank)
        self._slots: set[int] = set()
        """The slots that hold a request; the launcher alone knows them."""
        self._rehearsed = threading.Event()

        self._num_links = 0
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
        """Make pools of so many usable pages per KV group, and all else that steps need."""
        assert self._loaded is not None, "load comes first"
        self._model = await asyncio.to_thread(self._loaded.prepare, num_pages)

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
            await asyncio.to_thread(self._rehearsed.wait)
        if self._exporter is not None:
            self._exporter.start(self._samples)

    def serve(self, dial: Dial[BlockingLink]) -> None:
        """Start with any way to reach a Scheduler."""
        if self._model is None or self._threads:
            raise AccountingError(f"{self!r} is started without a model, or twice")

        self._experts = self._model.make_experts(self._copies_failed)
        bodies = {"launcher": self._launch, "completer": self._complete, "reporter": self._report}
        for name, body in bodies.items():
            arguments = (body, dial) if body == self._launch else (body,)
            self._threads.append(
                threading.Thread(target=self._guard, args=arguments, name=name, daemon=True)
            )

        for thread in self._threads:
            thread.start()

    async def drain(self) -> None:
        """Return once every step and copy received so far has ended, and been reported.

        That experts were copied is said with the result of the next step.
        """
        await asyncio.to_thread(self._drain)

    async def stats(self) -> dict[str, Any]:
        """Counters since the start, and whether the Scheduler is connected."""
        return self._figures()

    def _samples(self) -> list[Sample]:
        return read_samples(GPU_METRICS, self._figures(), (str(self._rank),))

    def _figures(self) -> dict[str, Any]:
        return {
            "rank": self._rank,
            "incarnation": self._incarnation,
            "pid": os.getpid(),
            "connected": self._link is not None,
            "num_links": self._num_links,
            "num_steps": self._results.num_reported,
            "compute_s": self._results.compute_s,
            "load_s": self._load_s,
            "num_running": len(self._slots),
            **self._reports.stats(),
            **({} if self._model is None else self._model.stats()),
        }

    async def shutdown(self) -> None:
        """Close the link, finish what is in flight and end the threads."""
        if self._exporter is not None:
            await self._exporter.stop()
        await asyncio.to_thread(self._shutdown)

    def _attach(self, location: ArenaLocation) -> ArenaLocation:
        assert self._model is not None, "prepare comes first"
        # The thread may be any of a pool's, which starts on the first device.
        self._model.enter_thread()

        make_transfers = self._model.make_transfers
        if make_transfers is None:
            raise AccountingError(f"{self!r} has no KV to copy")
        with phase(logger, "arena mapped"):
            return self._copies.attach(
                location,
                lambda arena: make_transfers(arena, self._reports.add, self._copies_failed),
            )

    def _drain(self) -> None:
        self._copies.drain()
        self._experts.drain()
        self._reports.flush()
        self._results.wait_reported()

    def _shutdown(self) -> None:
        self._stop.set()
        # Read once: the launcher may clear it meanwhile.
        if (link := self._link) is not None:
            link.close()
        for thread in self._threads:
            thread.join(FINISH_S)
        # A peer that stopped before it received the last plan leaves this rank stuck in it.
        if self._model is not None:
            self._model.close()
        self._copies.abandon_peers()
        for thread in self._threads:
            thread.join()
        self._copies.close()
        self._experts.close()

    def _launch(self, dial: Dial[BlockingLink]) -> None:
        assert self._model is not None
        self._model.enter_thread()
        try:
            self._model.rehearse()
            # Forgets what warming up has counted, and loads the kernels that this takes.
            self._experts.restore()
            self._rehearsed.set()
            while (link := redial(dial, self._stop, "the Scheduler", RECONNECT_S)) is not None:
                self._follow_watched(link)
                self._forget_requests()
        finally:
            # Nobody waits for a rehearsal that has failed.
            self._rehearsed.set()
            self._results.close()
            self._reports.close()

    def _follow_watched(self, link: BlockingLink) -> None:
        """Follow a link to its end, then finish all work that it brought.

        The next Scheduler must find nothing in motion. But work may never end: if a peer has not
        received the last plan, or the device of a rank alone hangs and no Scheduler minds that.
        Then `LinkWatch` ends this process, and all ranks that step together start afresh.
        """
        patience_s = ALONE_S if self._config.parallel.ranks_per_group == 1 else 2 * FINISH_S
        with LinkWatch(link, lambda: self._results.num_reported, patience_s, self._give_up):
            self._follow(link)
            self._drain()

    def _follow(self, link: BlockingLink) -> None:
        """Carry out a Scheduler's plans until its link ends."""
        self._num_links += 1
        self._link = link
        try:
            # A shutdown that looked for the link just before it was set has not closed it.
            while not self._stop.is_set():
                self._carry_out(self._plans.next(link), link)
        except LinkClosed as closed:
            logger.info("%r lost its Scheduler: %s", self, closed)
        finally:
            self._link = None
            link.close()

    def _carry_out(self, plan: StepPlan, link: BlockingLink) -> None:
        assert self._model is not None
        self._model.runner.apply(plan)
        self._experts.apply(plan)
        # Removals come first: a plan may give the same slot to another request.
        self._slots.difference_update(plan.removed_slots.tolist())
        self._slots.update(int(request.slot) for request in plan.added)

        # Rows wait for what loads bring. Of backups they would wait for the beginning alone.
        if len(plan.loads):
            self._copies.start(plan)
        step = self._run_rows(plan, link)
        if len(plan.backups) and not len(plan.loads):
            self._copies.start(plan)
        self._results.add(step)

    def _run_rows(self, plan: StepPlan, link: BlockingLink) -> EnqueuedStep:
        if not (len(plan.row_slots) or plan.group_tokens.any()):
            return EnqueuedStep(plan.step, link, None, None)
        assert self._model is not None
        timer = self._model.make_timer()
        timer.begin()
        output = self._model.runner.execute(plan, partial(self._wait_layer, timer))
        timer.end()
        return EnqueuedStep(plan.step, link, output, timer, self._experts.after_step())

    def _wait_layer(self, timer: StepTimer, transfer_id: int, layer: int) -> None:
        """Wait for a load, which does not count as the step's own time."""
        if self._copies.engine is not None:
            timer.pause()
            self._copies.engine.wait_layer(transfer_id, layer)
            timer.resume()

    def _forget_requests(self) -> None:
        """Drop every request, because the Scheduler that knew them is gone."""
        if self._slots:
            assert self._model is not None
            self._model.runner.apply(
                StepPlan(step=0, removed_slots=int32_array(sorted(self._slots)))
            )
            self._slots.clear()
        # The next Scheduler knows only where experts were at the start.
        self._experts.restore()
        self._plans.forget()

    def _complete(self) -> None:
        assert self._model is not None
        self._model.enter_thread()
        self._results.report(self._experts)

    def _report(self) -> None:
        while (message := self._reports.take()) is not None:
            # Read once: the launcher may clear it meanwhile.
            if (link := self._link) is not None:
                send_unless_closed(link, message)
            self._reports.sent()

    def _guard(self, body: Callable[..., None], *arguments: Any) -> None:
        try:
            body(*arguments)
        except Exception:
            if self._stop.is_set():
                logger.info("%r stops within a step", self, exc_info=True)
            else:
                logger.exception("%r cannot go on", self)
            self._give_up()

    def _copies_failed(self, error: BaseException) -> None:
        logger.error("%r cannot copy: %s", self, error)
        self._give_up()

    def _give_up(self) -> None:
        # Read once: the launcher may clear it meanwhile.
        if (link := self._link) is not None:
            link.close()
        self._on_fatal()
