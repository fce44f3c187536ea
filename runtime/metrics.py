"""What a metric is, and how an actor's figures become samples of the metrics that it declares.

A metric is declared once, beside the actor that tells it; `runtime/dashboards/catalogue.py` lists
all of them.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from operator import add
from typing import Any, Self, assert_never

PREFIX = "raydix_"

Figures = Mapping[str, object]
"""What an actor's `stats` returns: figures by name."""
LabelValues = tuple[str, ...]


REQUEST_BOUNDS_S = (
    0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0,
)  # fmt: skip
"""The buckets for what a whole request waits for: from a hit in L1 on a small model to a long
answer.
"""
TOKEN_BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0)
"""The buckets for one token of a stream: finest where readers notice."""
TRANSFER_BOUNDS_S = (
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
    10.0,
)  # fmt: skip
"""The buckets for pages that move between tiers: from a copy of one page to a storage that is
overdue.
"""


class MetricKind(StrEnum):
    """A counter only grows; a gauge is set; a histogram counts observed values by size."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Unit(Enum):
    """What a metric's values are measured in."""

    COUNT = "count"
    """The number of the things that its name says."""
    TOKENS = "tokens"
    PAGES = "pages"
    BYTES = "bytes"
    SECONDS = "seconds"
    FRACTION = "fraction"
    STATE = "state"
    """A number for each state; the description tells which."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """How many observed values lie between each two bounds, and their sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    """One more than bounds: up to each bound, then above all of them."""
    total: float

    def cumulative(self) -> Iterator[tuple[str, int]]:
        """Prometheus' `le` labels, and how many values are up to each."""
        so_far = 0
        for bound, count in zip((*map(repr, self.bounds), "+Inf"), self.counts, strict=True):
            so_far += count
            yield bound, so_far

    @property
    def count(self) -> int:
        """All observed values."""
        return sum(self.counts)

    def __add__(self, other: Self) -> Self:
        """The values of two distributions, whose bounds must be equal, as one."""
        assert self.bounds == other.bounds, "values are counted between equal bounds"
        counts = tuple(map(add, self.counts, other.counts))
        return replace(self, counts=counts, total=self.total + other.total)


class Histogram:
    """Owns: the counts of one distribution, which only grow."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def distribution(self) -> Distribution:
        """What has been counted."""
        return Distribution(self._bounds, tuple(self._counts), self._total)

    def figure(self) -> dict[str, Any]:
        """What `stats` tells: plain values, which any link carries."""
        return {"counts": list(self._counts), "sum": self._total}


@dataclass(frozen=True, slots=True)
class Figure:
    """One sample: the figure of this name; a counter or histogram that is not told is zero."""

    name: str
    labels: LabelValues = ()


@dataclass(frozen=True, slots=True)
class Family:
    """A sample for each of these figures, whose names are `prefix` and a member.

    The member is the last label. Of a counter, members that are not told are zero.
    """

    prefix: str
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ByRank:
    """A sample for each rank: the figure of this name in what the actor tells of it."""

    name: str


@dataclass(frozen=True, slots=True)
class Derived:
    """Samples that are computed from several figures."""

    compute: Callable[[Figures], Iterable[tuple[LabelValues, object]]]


Source = Figure | Family | ByRank | Derived

BY_RANK = "by_rank"
"""The figure that holds those of each rank: a list, in the order of the ranks."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric, and where its samples come from."""

    name: str
    """The name without `PREFIX`."""
    kind: MetricKind
    unit: Unit
    description: str
    sources: tuple[Source, ...]
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = field(default=())
    """The places where the buckets of a histogram end."""


@dataclass(frozen=True, slots=True)
class MetricGroup:
    """Metrics of one subject: a part of the document and a row of panels."""

    title: str
    metrics: tuple[Metric, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one metric."""

    metric: Metric
    labels: LabelValues
    """The labels' values, in the order of `metric.labels`."""
    value: float | Distribution
    """A distribution of a histogram, a number of others."""


def counter(
    name: str, unit: Unit, description: str, *sources: Source, labels: tuple[str, ...] = ()
) -> Metric:
    """Declare a metric that only grows; its name ends in `_total`."""
    return Metric(name, MetricKind.COUNTER, unit, description, sources, labels)


def gauge(
    name: str, unit: Unit, description: str, *sources: Source, labels: tuple[str, ...] = ()
) -> Metric:
    """Declare a metric that goes up and down."""
    return Metric(name, MetricKind.GAUGE, unit, description, sources, labels)


def histogram(
    name: str,
    bounds: tuple[float, ...],
    description: str,
    *sources: Source,
    labels: tuple[str, ...] = (),
) -> Metric:
    """Declare a metric of durations in seconds, of which quantiles can be told."""
    return Metric(name, MetricKind.HISTOGRAM, Unit.SECONDS, description, sources, labels, bounds)


def metrics_of(groups: Iterable[MetricGroup]) -> tuple[Metric, ...]:
    """The metrics of all these groups, in order."""
    return tuple(metric for group in groups for metric in group.metrics)


def read_samples(
    metrics: Sequence[Metric], figures: Figures, common_labels: LabelValues = ()
) -> list[Sample]:
    """All samples that `figures` hold. `common_labels` come first in the labels of each."""
    return [
        Sample(metric, (*common_labels, *labels), _value(metric, figure))
        for metric in metrics
        for source in metric.sources
        for labels, figure in _read(source, figures)
        if figure is not None or metric.kind is not MetricKind.GAUGE
    ]


def _read(source: Source, figures: Figures) -> Iterator[tuple[LabelValues, object]]:
    """The figures of a source, with their labels; None for one that is not told."""
    match source:
        case Figure(name, labels):
            yield labels, figures.get(name)
        case Family(prefix, names):
            for name in names:
                yield (name,), figures.get(prefix + name)
        case ByRank(name):
            for rank, own in enumerate(figures_by_rank(figures)):
                yield (str(rank),), own.get(name)
        case Derived(compute):
            yield from compute(figures)
        case _:
            assert_never(source)


def _value(metric: Metric, figure: object) -> float | Distribution:
    """What has not happened yet is zero."""
    if metric.kind is not MetricKind.HISTOGRAM:
        return 0.0 if figure is None else number(figure)
    if figure is None:
        return Distribution(metric.bounds, (0,) * (len(metric.bounds) + 1), 0.0)
    assert isinstance(figure, Mapping), "Histogram.figure made it"
    counts = tuple(figure["counts"])
    assert len(counts) == len(metric.bounds) + 1, f"{metric.name} is counted by other bounds"
    return Distribution(metric.bounds, counts, number(figure["sum"]))


def figures_by_rank(figures: Figures) -> Sequence[Figures]:
    """What an actor tells of each rank, in order."""
    by_rank = figures.get(BY_RANK, ())
    assert isinstance(by_rank, list | tuple)
    return by_rank


def members(figures: Figures, prefix: str) -> dict[str, float]:
    """The figures whose names start with `prefix`, by the rest of their names."""
    return {
        name.removeprefix(prefix): number(value)
        for name, value in figures.items()
        if name.startswith(prefix)
    }


def number(value: object) -> float:
    """A figure that is a number, as one."""
    assert isinstance(value, int | float)
    return float(value)
