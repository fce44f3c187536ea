"""What a server tells of where its requests went, and of how wrong the predictions were."""

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import add

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
    ROUTED_HAND_OVER,
    ROUTED_KEYS,
    ROUTED_LATE,
    ROUTED_SPLIT,
    ROUTED_TOKENS,
)


class RoutingCollector(Collector):
    """The figures of the handles by which one server, of several perhaps, asks its engines."""

    def __init__(self, engines: Sequence[ServedEngine], replica: int) -> None:
        """`engines`: the handle on those of each model."""
        self._engines = engines
        self._replica = str(replica)

    def collect(self) -> Iterable[PrometheusMetric]:
        """Return the metrics, as prometheus_client asks of a collector."""
        all_figures = [each.routing_figures for each in self._engines]
        routed = CounterMetricFamily(_name(ROUTED), ROUTED.description, labels=ROUTED.labels)
        tokens = CounterMetricFamily(
            _name(ROUTED_TOKENS), ROUTED_TOKENS.description, labels=ROUTED_TOKENS.labels
        )
        keys = GaugeMetricFamily(
            _name(ROUTED_KEYS), ROUTED_KEYS.description, labels=ROUTED_KEYS.labels
        )
        split = CounterMetricFamily(
            _name(ROUTED_SPLIT), ROUTED_SPLIT.description, labels=ROUTED_SPLIT.labels
        )
        for figures in all_figures:
            for engine, number in figures.num_routed.items():
                routed.add_metric((engine, self._replica), number)
            for (engine, tier), number in figures.num_tokens.items():
                tokens.add_metric((engine, tier, self._replica), number)
            for engine, number in figures.num_split.items():
                split.add_metric((engine, self._replica), number)
            for engine, number in figures.num_keys.items():
                keys.add_metric((engine, self._replica), number)
        yield from (routed, tokens, split, keys)

        times = (
            (ROUTED_LATE, [figures.late for figures in all_figures]),
            (ROUTED_EARLY, [figures.early for figures in all_figures]),
            (ROUTED_HAND_OVER, [figures.hand_over for figures in all_figures]),
        )
        for metric, counted in times:
            family = HistogramMetricFamily(_name(metric), metric.description, labels=metric.labels)
            told = reduce(add, (each.distribution() for each in counted))
            buckets = [(bound, float(count)) for bound, count in told.cumulative()]
            family.add_metric((self._replica,), buckets, told.total)
            yield family


def _name(metric: Metric) -> str:
    return PREFIX + metric.name
