"""What the server counts of its requests, and `/metrics`."""

import time
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from raydix.runtime.actors.scheduler_metrics import SCHEDULER_METRICS
from raydix.runtime.metrics import PREFIX, MetricKind, Sample, read_samples
from raydix.runtime.server.served import REFUSALS, Served

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_NO_ROUTE = "none"
"""Paths that are no route: their names are the client's, and without bound."""


class HttpMetrics:
    """Owns: the counts of one server, which `replica` tells from others of the same engine."""

    def __init__(self, replica: int) -> None:
        self._replica = str(replica)
        self.registry = CollectorRegistry()
        self._requests = Counter(
            f"{PREFIX}http_requests",
            "Requests that were answered.",
            ("route", "status", "replica"),
            registry=self.registry,
        )
        self._in_progress = Gauge(
            f"{PREFIX}http_requests_in_progress",
            "Requests whose answer is not complete.",
            ("replica",),
            registry=self.registry,
        ).labels(self._replica)
        self._first_byte = Histogram(
            f"{PREFIX}http_time_to_first_byte_seconds",
            "From a request's first byte to its answer's: in a stream, to the first token.",
            ("route", "replica"),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._duration = Histogram(
            f"{PREFIX}http_request_seconds",
            "From a request's first byte to its answer's last.",
            ("route", "replica"),
            buckets=_SECONDS,
            registry=self.registry,
        )

    def begin(self) -> None:
        """A request has come."""
        self._in_progress.inc()

    def end(self, route: str, status: int, first_byte_s: float | None, total_s: float) -> None:
        """It was answered, or its client has gone before the first byte."""
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
        """See ASGI."""
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


def metrics_routes(served: Served, metrics: HttpMetrics) -> APIRouter:
    """The route."""
    router = APIRouter()

    @router.get("/metrics", responses=REFUSALS)
    async def read_metrics() -> Response:
        """The server's and the Scheduler's metrics, as Prometheus reads them."""
        figures = await served.engine.stats()
        engine = CollectorRegistry()
        engine.register(_SchedulerCollector(figures.get("scheduler") or {}, served.model_name))
        text = generate_latest(metrics.registry) + generate_latest(engine)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    return router


class _SchedulerCollector(Collector):
    """The Scheduler's figures at one moment."""

    def __init__(self, figures: dict[str, Any], model_name: str) -> None:
        self._samples = read_samples(SCHEDULER_METRICS, figures)
        self._model_name = model_name

    def collect(self) -> Iterable[Metric]:
        """See prometheus_client."""
        by_name = sorted(self._samples, key=lambda sample: sample.metric.name)
        for _, samples in groupby(by_name, key=lambda sample: sample.metric.name):
            yield self._family(list(samples))

    def _family(self, samples: list[Sample]) -> Metric:
        metric = samples[0].metric
        is_counter = metric.kind is MetricKind.COUNTER
        cls = CounterMetricFamily if is_counter else GaugeMetricFamily
        labels = (*metric.labels, "model")
        family = cls(PREFIX + metric.name, metric.description, labels=labels)
        for sample in samples:
            family.add_metric((*sample.labels, self._model_name), sample.value)
        return family


def _route_of(scope: Scope) -> str:
    # Whoever matches a path leaves the route here; the path itself may hold anything.
    route = scope.get("route")
    return _NO_ROUTE if route is None else str(route.path)
