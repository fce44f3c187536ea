"""What a server tells of where its requests went, and of how wrong the predictions were."""

from collections.abc import Iterable

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as PrometheusMetric
from prometheus_client.registry import Collector

from raydix.runtime.metrics import PREFIX, Metric
from raydix.runtime.server.engine import ServedEngine
from raydix.runtime.server.http_definitions import (
    ROUTED,
    ROUTED_EARLY,
    ROUTED_KEYS,
    ROUTED_LATE,
    ROUTED_TOKENS,
)


class RoutingCollector(Collector):
    """The figures of the handle by which one server, of several perhaps, asks its engines."""

    def __init__(self, engine: ServedEngine, replica: int) -> None:
        self._engine = engine
        self._replica = str(replica)

    def collect(self) -> Iterable[PrometheusMetric]:
        """Return the metrics, as prometheus_client asks of a collector."""
        figures = self._engine.routing_figures
        routed = CounterMetricFamily(_name(ROUTED), ROUTED.description, labels=ROUTED.labels)
        for engine, number in figures.num_routed.items():
            routed.add_metric((engine, self._replica), number)
        tokens = CounterMetricFamily(
            _name(ROUTED_TOKENS), ROUTED_TOKENS.description, labels=ROUTED_TOKENS.labels
        )
        for (engine, tier), number in figures.num_tokens.items():
            tokens.add_metric((engine, tier, self._replica), number)
        keys = GaugeMetricFamily(
            _name(ROUTED_KEYS), ROUTED_KEYS.description, labels=ROUTED_KEYS.labels
        )
        for engine, number in figures.num_keys.items():
            keys.add_metric((engine, self._replica), number)
        yield from (routed, tokens, keys)

        for metric, counted in ((ROUTED_LATE, figures.late), (ROUTED_EARLY, figures.early)):
            family = HistogramMetricFamily(_name(metric), metric.description, labels=metric.labels)
            told = counted.distribution()
            buckets = [(bound, float(count)) for bound, count in told.cumulative()]
            family.add_metric((self._replica,), buckets, told.total)
            yield family


def _name(metric: Metric) -> str:
    return PREFIX + metric.name
