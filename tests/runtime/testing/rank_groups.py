"""An engine in one process whose ranks may end, and are made again."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from raydix.runtime.actors.gpu_model import (
    BuildModel,
    GpuModel,
    LoadedGpuModel,
    RankPlace,
    Runner,
    StepOutput,
)
from raydix.runtime.actors.supervision.restarts import Supervision
from raydix.runtime.actors.supervision.spawn import ActorKind, RunningActor
from raydix.runtime.actors.supervision.supervisor import SupervisorActor
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.messages.plan import StepPlan
from raydix.runtime.testing.engine import InProcessEngine
from raydix.runtime.testing.spawner import InProcessActor, InProcessSpawner
from raydix.runtime.tiers.transfers import WaitLayer


class Brake:
    """Owns: whether requests may pass a position. Until then all ranks' steps with one wait."""

    def __init__(self, position: int) -> None:
        self.position = position
        self._is_off = threading.Event()

    def put_on(self) -> None:
        """No request passes the position from now on."""
        self._is_off.clear()

    def take_off(self) -> None:
        """All go on."""
        self._is_off.set()

    def wait(self) -> None:
        """Return once it is off."""
        self._is_off.wait()

    def on(self, build_model: BuildModel) -> BuildModel:
        """The same model, with this brake."""

        def build(config: EngineConfig, place: RankPlace) -> LoadedGpuModel:
            loaded = build_model(config, place)

            def prepare(num_pages: tuple[int, ...]) -> GpuModel:
                model = loaded.prepare(num_pages)

                def close() -> None:
                    # A test that has failed leaves it on.
                    self.take_off()
                    model.close()

                return replace(model, runner=_BrakedRunner(model.runner, self), close=close)

            return replace(loaded, prepare=prepare)

        return build


class _BrakedRunner:
    """A `Runner` of steps up to the brake's position, and of others once it is off."""

    def __init__(self, runner: Runner, brake: Brake) -> None:
        self._runner = runner
        self._brake = brake

    def apply(self, plan: StepPlan) -> None:
        """Carry a plan's changes out, as the runner inside does."""
        self._runner.apply(plan)

    def execute(self, plan: StepPlan, wait_layer: WaitLayer) -> StepOutput:
        """Wait at the brake, if a row has come there, and run the rows."""
        if any(plan.row_starts + plan.row_num_tokens > self._brake.position):
            self._brake.wait()
        return self._runner.execute(plan, wait_layer)


class RankSpawner(InProcessSpawner):
    """A `Spawner` that notes every incarnation of every rank."""

    def __init__(self, build_model: BuildModel) -> None:
        super().__init__(build_model)
        self.ranks: dict[tuple[int, int], InProcessActor] = {}
        """The ranks that were made, by rank and incarnation."""

    async def spawn(self, kind: ActorKind, name: str, /, **arguments: Any) -> RunningActor:
        """Start an actor, and keep it by rank and incarnation."""
        running = await super().spawn(kind, name, **arguments)
        if kind is ActorKind.GPU:
            assert isinstance(running, InProcessActor)
            self.ranks[arguments["rank"], arguments["incarnation"]] = running
        return running


class Groups:
    """An engine with its Supervisor, which makes ranks again."""

    def __init__(
        self,
        config: EngineConfig,
        build_model: BuildModel,
        supervision: Supervision | None = None,
    ) -> None:
        self._num_ranks = config.parallel.num_ranks
        self.spawner = RankSpawner(build_model)
        self.supervisor = SupervisorActor(
            name="groups",
            config=config,
            spawner=self.spawner,
            supervision=supervision or Supervision(first_backoff_s=0.01),
        )

    @asynccontextmanager
    async def engine(self) -> AsyncIterator[InProcessEngine]:
        facts = await self.supervisor.start()
        engine = InProcessEngine(self.supervisor, self.spawner, facts)
        try:
            await engine.connect()
            yield engine
        finally:
            await engine.close()
            await self.supervisor.shutdown()

    async def incarnations(self) -> list[int]:
        """The incarnations of all ranks."""
        health = await self.supervisor.health()
        return [health[f"gpu{rank}"]["incarnation"] for rank in range(self._num_ranks)]
