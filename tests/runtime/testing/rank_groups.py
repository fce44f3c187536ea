"""An engine in one process whose ranks may end, and are made again."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from raydix.runtime.actors.gpu_model import BuildModel
from raydix.runtime.actors.supervision.restarts import Supervision
from raydix.runtime.actors.supervision.spawn import ActorKind, RunningActor
from raydix.runtime.actors.supervision.supervisor import SupervisorActor
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.testing.engine import InProcessEngine
from raydix.runtime.testing.spawner import InProcessActor, InProcessSpawner


class RankSpawner:
    """A `Spawner` that notes every incarnation of every rank."""

    def __init__(self, build_model: BuildModel) -> None:
        self.inner = InProcessSpawner(build_model)
        self.ranks: dict[tuple[int, int], InProcessActor] = {}
        """By rank and incarnation."""

    async def spawn(self, kind: ActorKind, name: str, /, **arguments: Any) -> RunningActor:
        """See `Spawner`."""
        running = await self.inner.spawn(kind, name, **arguments)
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
        engine = InProcessEngine(self.supervisor, self.spawner.inner, facts)
        try:
            await engine.connect()
            yield engine
        finally:
            await engine.close()
            await self.supervisor.shutdown()

    async def incarnations(self) -> list[int]:
        """Of all ranks."""
        health = await self.supervisor.health()
        return [health[f"gpu{rank}"]["incarnation"] for rank in range(self._num_ranks)]
