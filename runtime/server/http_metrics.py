"""What the server counts of its requests, and `/metrics`."""

import time
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as PrometheusMetric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from raydix.runtime.actors.gpu_metrics import GPU_METRICS
from raydix.runtime.actors.host_metrics import HOST_METRICS
from raydix.runtime.actors.scheduler_metrics import SCHEDULER_METRICS
from raydix.runtime.actors.storage_metrics import STORAGE_METRICS
from raydix.runtime.actors.supervision.spawn import ActorKind
from raydix.runtime.metrics import (
    PREFIX,
    Distribution,
    Metric,
    MetricKind,
    Sample,
    read_samples,
)
from raydix.runtime.server.http_definitions import DURATION, FIRST_BYTE, IN_PROGRESS, REQUESTS
from raydix.runtime.server.served import REFUSALS
from raydix.runtime.server.served_models import ServedModels

_NO_ROUTE = "none"
"""The label for paths that are no route: clients choose their names, without bound."""


class HttpMetrics:
    """Owns: the counts of one server, which `replica` tells from others of the same engine."""

    def __init__(self, replica: int) -> None:
        self._replica = str(replica)
        self.registry = CollectorRegistry()
        self._requests = Counter(*_named(REQUESTS), registry=self.registry)
        self._in_progress = Gauge(*_named(IN_PROGRESS), registry=self.registry).labels(
            self._replica
        )
        self._first_byte = Histogram(
            *_named(FIRST_BYTE), buckets=FIRST_BYTE.bounds, registry=self.registry
        )
        self._duration = Histogram(
            *_named(DURATION), buckets=DURATION.bounds, registry=self.registry
        )

    def expect(self, routes: Iterable[str]) -> None:
        """Tell of these routes before the first request."""
        for route in routes:
            self._requests.labels(route, "200", self._replica)
            self._first_byte.labels(route, self._replica)
            self._duration.labels(route, self._replica)

    def begin(self) -> None:
        """Note that a request has come."""
        self._in_progress.inc()

    def end(self, route: str, status: int, first_byte_s: float | None, total_s: float) -> None:
        """Note that a request was answered, or that its client has gone before the first byte."""
        self._in_progress.dec()
        self._requests.labels(route, str(status), self._replica).inc()
        self._duration.labels(route, self._replica).observe(total_s)
        if first_byte_s is not None:
            self._first_byte.labels(route, self._replica).observe(first_byte_s)


class CountRequests:
    """ASGI middleware: counts and times every request."""

    def __init__(
        self, app: ASGIApp, metrics: HttpMetrics, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, as ASGI asks of an application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        began_s = self._clock()
        first_byte_s: float | None = None
        status = 499

        async def timed(message: Message) -> None:
            nonlocal first_byte_s, status
            if message["type"] == "http.response.start":
                status = message["status"]
                first_byte_s = self._clock() - began_s
            await send(message)

        self._metrics.begin()
        try:
            await self._app(scope, receive, timed)
        finally:
            total_s = self._clock() - began_s
            self._metrics.end(_route_of(scope), status, first_byte_s, total_s)


def _named(metric: Metric) -> tuple[str, str, tuple[str, ...]]:
    """What each of Prometheus' types begins with."""
    return PREFIX + metric.name, metric.description, metric.labels


def metrics_routes(models: ServedModels, metrics: HttpMetrics) -> APIRouter:
    """The route of the server's metrics."""
    router = APIRouter()

    @router.get("/metrics", responses=REFUSALS)
    async def read_metrics() -> Response:
        """The server's and the engines' metrics, as Prometheus reads them."""
        engine = CollectorRegistry()
        told = await models.ask_all(lambda served: served.engine.stats_by_engine())
        by_engine = {
            name: figures for each in told.values() for name, figures in (each or {}).items()
        }
        engine.register(_EngineCollector(by_engine))
        text = generate_latest(metrics.registry) + generate_latest(engine)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    return router


def _engine_samples(stats: dict[str, Any]) -> list[Sample]:
    """Samples of every actor that tells metrics and is not being restarted."""
    samples: list[Sample] = []
    if scheduler := stats.get("scheduler"):
        samples += read_samples(SCHEDULER_METRICS, scheduler)
    if host := stats.get("host"):
        samples += read_samples(HOST_METRICS, host)
    for actor, figures in stats.items():
        if actor.startswith(ActorKind.GPU.value) and figures:
            samples += read_samples(GPU_METRICS, figures, (str(figures["rank"]),))
    if storage := stats.get("storage"):
        samples += read_samples(STORAGE_METRICS, storage, (storage["backend"],))
    return samples


class _EngineCollector(Collector):
    """The engines' figures at one moment."""

    def __init__(self, stats: Mapping[str, dict[str, Any] | None]) -> None:
        """`stats`: by the engine's name; None for one that is away."""
        self._samples = [
            (sample, engine)
            for engine, figures in stats.items()
            if figures is not None
            for sample in _engine_samples(figures)
        ]

    def collect(self) -> Iterable[PrometheusMetric]:
        """Return the metrics, as prometheus_client asks of a collector."""
        by_name = sorted(self._samples, key=_name_of)
        for _, samples in groupby(by_name, key=_name_of):
            yield _family(list(samples))


def _name_of(told: tuple[Sample, str]) -> str:
    return told[0].metric.name


def _family(told: list[tuple[Sample, str]]) -> PrometheusMetric:
    """The samples of one metric, each with its engine's name."""
    metric = told[0][0].metric
    name, description, labels = _named(metric)
    labels = (*labels, "engine")
    if metric.kind is MetricKind.HISTOGRAM:
        histogram = HistogramMetricFamily(name, description, labels=labels)
        for sample, engine in told:
            assert isinstance(sample.value, Distribution)
            buckets = [(bound, float(count)) for bound, count in sample.value.cumulative()]
            histogram.add_metric((*sample.labels, engine), buckets, sample.value.total)
        return histogram

    cls = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
    family = cls(name, description, labels=labels)
    for sample, engine in told:
        assert isinstance(sample.value, float)
        family.add_metric((*sample.labels, engine), sample.value)
    return family


def _route_of(scope: Scope) -> str:
    # Whoever matches a path leaves the route here; the path itself may hold anything.
    route = scope.get("route")
    return _NO_ROUTE if route is None else str(route.path)
