"""What a metric is, and how an actor's figures become samples of the metrics that it declares.

A metric is declared once, beside the actor that exports it: `scheduler_metrics.py`,
`host_metrics.py` and `storage_metrics.py` in `runtime/actors/`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import assert_never

PREFIX = "raydix_"

Figures = Mapping[str, object]
"""What an actor's `stats` returns: figures by name."""
LabelValues = tuple[str, ...]


class MetricKind(StrEnum):
    """A counter only grows; a gauge is set."""

    COUNTER = "counter"
    GAUGE = "gauge"


class Unit(Enum):
    """What a metric's values are measured in."""

    COUNT = "count"
    """Of the things that its name says."""
    TOKENS = "tokens"
    PAGES = "pages"
    BYTES = "bytes"
    SECONDS = "seconds"
    FRACTION = "fraction"
    STATE = "state"
    """A number for each state; the description tells which."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One sample: the figure of this name, where the actor tells it."""

    name: str
    labels: LabelValues = ()


@dataclass(frozen=True, slots=True)
class Family:
    """A sample for each figure whose name starts with `prefix`; the rest is its last label."""

    prefix: str


@dataclass(frozen=True, slots=True)
class Derived:
    """Samples that are computed from several figures."""

    compute: Callable[[Figures], Iterable[tuple[LabelValues, float]]]


Source = Figure | Family | Derived


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric, and where its samples come from."""

    name: str
    """Without `PREFIX`."""
    kind: MetricKind
    unit: Unit
    description: str
    sources: tuple[Source, ...]
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one metric."""

    metric: Metric
    labels: LabelValues
    """In the order of `metric.labels`."""
    value: float


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


def read_samples(
    metrics: Sequence[Metric], figures: Figures, common_labels: LabelValues = ()
) -> list[Sample]:
    """All samples that `figures` hold. `common_labels` come first in the labels of each."""
    return [
        Sample(metric, (*common_labels, *labels), value)
        for metric in metrics
        for source in metric.sources
        for labels, value in _read(source, figures)
    ]


def _read(source: Source, figures: Figures) -> Iterator[tuple[LabelValues, float]]:
    match source:
        case Figure(name, labels):
            # Counters that have counted nothing yet are not told.
            if name in figures:
                yield labels, number(figures[name])
        case Family(prefix):
            for name, value in members(figures, prefix).items():
                yield (name,), value
        case Derived(compute):
            yield from compute(figures)
        case _:
            assert_never(source)


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
