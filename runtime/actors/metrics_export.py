"""Publishes an actor's metrics through Ray's metrics agent, as `ray_raydix_...`.

A histogram goes out as gauges that are named as Prometheus names its parts: of Ray's own histograms
the agent makes the sum from the middles of the buckets.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from ray.util.metrics import Counter, Gauge

from raydix.runtime.metrics import PREFIX, Distribution, LabelValues, MetricKind, Sample

_INTERVAL_S = 2.0
"""The interval of exports: Ray forgets a gauge not set for two of its own, by default 10 s."""


class MetricsExporter:
    """Owns: the Ray metrics of one actor, which exist from `start` on.

    The exporter itself is made by whoever starts the actor, and travels to it.
    """

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._published: dict[tuple[str, LabelValues], float] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self, snapshot: Callable[[], Sequence[Sample]]) -> None:
        """Publish `snapshot()` from now on, again and again, on the running loop."""
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
        """Set a gauge or the parts of a histogram, or raise a counter by what it grew."""
        metric = sample.metric
        tags = {**dict(zip(metric.labels, sample.labels, strict=True)), "engine": self._engine}
        if isinstance(sample.value, Distribution):
            for bound, count in sample.value.cumulative():
                self._set(sample, "_bucket", count, {**tags, "le": bound})
            self._set(sample, "_count", sample.value.count, tags)
            self._set(sample, "_sum", sample.value.total, tags)
        elif metric.kind is MetricKind.GAUGE:
            self._set(sample, "", sample.value, tags)
        else:
            self._raise(sample, sample.value, tags)

    def _set(self, sample: Sample, suffix: str, value: float, tags: dict[str, str]) -> None:
        name = sample.metric.name + suffix
        if name not in self._gauges:
            self._gauges[name] = Gauge(PREFIX + name, sample.metric.description, tuple(tags))
        self._gauges[name].set(value, tags)

    def _raise(self, sample: Sample, value: float, tags: dict[str, str]) -> None:
        name = sample.metric.name
        if name not in self._counters:
            self._counters[name] = Counter(PREFIX + name, sample.metric.description, tuple(tags))

        # Ray's counters take increments.
        key = name, sample.labels
        is_new = key not in self._published
        grown = value - self._published.get(key, 0.0)
        self._published[key] = value
        if grown > 0:
            self._counters[name].inc(grown, tags)
        elif is_new:
            # `inc` refuses zero, without which a counter would not exist before its first event.
            self._counters[name]._record(0.0, tags)
