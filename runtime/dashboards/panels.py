"""What a panel shows of a metric: PromQL that follows from its kind, unit and labels."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from raydix.runtime.dashboards.catalogue import TELLERS, all_metrics
from raydix.runtime.metrics import PREFIX, Metric, MetricKind, Unit

RATE_RANGE = "$__rate_interval"
"""Grafana puts in the time that a rate needs at least."""
_QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
_OWN_OF_SERVER = frozenset(
    metric.name
    for teller in TELLERS
    if not teller.is_engine
    for group in teller.groups
    for metric in group.metrics
)


class Endpoint(StrEnum):
    """Where Prometheus reads the engine's metrics."""

    RAY = "ray"
    HTTP = "http"

    @property
    def prefix(self) -> str:
        """What the engine's metrics are called there before their names."""
        return f"ray_{PREFIX}" if self is Endpoint.RAY else PREFIX


@dataclass(frozen=True, slots=True)
class Target:
    """One set of lines of a panel."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph. `unit`: Grafana's name for it."""

    title: str
    description: str
    unit: str
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class Names:
    """How metrics are named and selected in expressions for one endpoint.

    `engine`: the engines meant, as a regular expression; None: all, which needs no selector.
    """

    endpoint: Endpoint
    engine: str | None

    def select(self, name: str, suffix: str = "", **labels: str) -> str:
        """The series of a metric. labels: regular expressions. Raises KeyError if there is none."""
        metric = _BY_NAME[name]
        is_own = name in _OWN_OF_SERVER
        prefix = PREFIX if is_own else self.endpoint.prefix
        if self.engine is not None and not is_own:
            labels["engine"] = self.engine
        unknown = labels.keys() - {*metric.labels, "engine"}
        assert not unknown, f"{name} has no labels {unknown}"
        selectors = ",".join(f'{label}=~"{wanted}"' for label, wanted in labels.items())
        return f"{prefix}{name}{suffix}{{{selectors}}}" if selectors else prefix + name + suffix

    def rate(self, name: str, *by: str, over: str = RATE_RANGE, **labels: str) -> str:
        """Growth of a counter per second, added up but for these labels."""
        return f"{_sum_by(by)} (rate({self.select(name, **labels)}[{over}]))"

    def quantile(self, quantile: float, name: str, *by: str, over: str = RATE_RANGE) -> str:
        """A quantile of a histogram for each of these labels."""
        buckets = self.select(name, "_bucket")
        return f"histogram_quantile({quantile:g}, {_sum_by(('le', *by))} (rate({buckets}[{over}])))"


_BY_NAME = {metric.name: metric for metric in all_metrics()}


def panel_of(metric: Metric, names: Names) -> Panel:
    """The panel that every metric has."""
    own = () if metric.name in _OWN_OF_SERVER else ("engine",)
    by = (*own, *metric.labels)
    legend = " ".join(f"{{{{{label}}}}}" for label in by) or metric.name
    return Panel(
        title=metric.name,
        description=metric.description,
        unit=_grafana_unit(metric),
        targets=tuple(_targets(metric, names, by, legend)),
    )


def _targets(metric: Metric, names: Names, by: tuple[str, ...], legend: str) -> Iterator[Target]:
    match metric.kind:
        case MetricKind.COUNTER:
            yield Target(names.rate(metric.name, *by), legend)
        case MetricKind.GAUGE:
            # Parts of a whole cannot be added up over actors; of these one alone tells each.
            is_sum = metric.unit not in (Unit.FRACTION, Unit.STATE)
            aggregate = _sum_by(by) if is_sum else _sum_by(by, "max")
            yield Target(f"{aggregate} ({names.select(metric.name)})", legend)
        case MetricKind.HISTOGRAM:
            for title, quantile in _QUANTILES:
                yield Target(names.quantile(quantile, metric.name, *by), f"{title} {legend}")
        case _:
            assert_never(metric.kind)


def overview(names: Names) -> tuple[Panel, ...]:
    """What is looked at first; each needs more than one metric or less than all of one."""
    queries = names.rate("prefix_cache_queries_total", "engine")
    hits = names.rate(
        "prompt_tokens_cached_by_source_total", "engine", "source", source="l1|l2|peer|l3"
    )
    return (
        Panel(
            "Requests",
            "Running, waiting for pages from L2, and waiting for their turn.",
            "short",
            tuple(
                Target(
                    f"sum by (engine) ({names.select(f'num_requests_{state}')})",
                    f"{state} {{{{engine}}}}",
                )
                for state in ("running", "loading", "waiting")
            ),
        ),
        Panel(
            "Tokens",
            "Prompt and output tokens per second.",
            "short",
            (
                Target(names.rate("prompt_tokens_total", "engine"), "prompt {{engine}}"),
                Target(names.rate("generation_tokens_total", "engine"), "output {{engine}}"),
            ),
        ),
        Panel(
            "Part of prompt tokens by tier",
            "What the tiers had of the prompts; what is missing to 1 was computed.",
            "percentunit",
            (Target(f"{hits} / on (engine) group_left () {queries}", "{{source}} {{engine}}"),),
        ),
        Panel(
            "Error of predicted loads",
            "Mean deviation of predicted from measured times of loads, relative to these.",
            "percentunit",
            (
                Target(
                    f"{names.rate('load_error_seconds_total', 'engine')} / "
                    f"{names.rate('load_measured_seconds_total', 'engine')}",
                    "{{engine}}",
                ),
            ),
        ),
    )


def _sum_by(labels: tuple[str, ...], aggregate: str = "sum") -> str:
    return f"{aggregate} by ({', '.join(labels)})" if labels else aggregate


def _grafana_unit(metric: Metric) -> str:
    is_rate = metric.kind is MetricKind.COUNTER
    match metric.unit:
        case Unit.SECONDS:
            # Seconds per second are the part of the time that something took.
            return "percentunit" if is_rate else "s"
        case Unit.BYTES:
            return "Bps" if is_rate else "bytes"
        case Unit.FRACTION:
            return "percentunit"
        case Unit.COUNT | Unit.TOKENS | Unit.PAGES | Unit.STATE:
            return "short"
        case _:
            assert_never(metric.unit)
