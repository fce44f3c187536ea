"""Publishes an actor's metrics through Ray's metrics agent, as `raydix_...`."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from ray.util.metrics import Counter, Gauge

from raydix.runtime.metrics import PREFIX, MetricKind, Sample

_INTERVAL_S = 1.0


class MetricsExporter:
    """Owns: the Ray metrics of one actor, which exist from `start` on.

    The exporter itself is made by whoever starts the actor, and travels to it.
    """

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._metrics: dict[str, Counter | Gauge] = {}
        self._published: dict[tuple[str, tuple[str, ...]], float] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self, snapshot: Callable[[], Sequence[Sample]]) -> None:
        """Publish `snapshot()` every second from now on, on the running loop."""
        self._task = asyncio.get_running_loop().create_task(self._run(snapshot))

    async def stop(self) -> None:
        """Publish no more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self, snapshot: Callable[[], Sequence[Sample]]) -> None:
        while True:
            for sample in snapshot():
                self.publish(sample)
            await asyncio.sleep(_INTERVAL_S)

    def publish(self, sample: Sample) -> None:
        """Set a gauge, or raise a counter by what it grew since it was last published."""
        metric = sample.metric
        exported = self._metrics.get(metric.name)
        if exported is None:
            cls = Counter if metric.kind is MetricKind.COUNTER else Gauge
            exported = cls(
                PREFIX + metric.name, metric.description, tag_keys=(*metric.labels, "engine")
            )
            self._metrics[metric.name] = exported

        tags = {**dict(zip(metric.labels, sample.labels, strict=True)), "engine": self._engine}
        if isinstance(exported, Gauge):
            exported.set(sample.value, tags)
            return

        # Ray's counters take increments.
        key = (metric.name, sample.labels)
        grown = sample.value - self._published.get(key, 0.0)
        self._published[key] = sample.value
        if grown > 0:
            exported.inc(grown, tags)
