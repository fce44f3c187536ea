"""What metrics declare, held against the code that counts and the document that lists them."""

import ast
import re
from pathlib import Path

import pytest

from raydix.runtime.dashboards.catalogue import TELLERS, all_metrics
from raydix.runtime.dashboards.document import with_tables
from raydix.runtime.metrics import (
    BY_RANK,
    ByRank,
    Distribution,
    Family,
    Figure,
    Histogram,
    Metric,
    MetricKind,
    Unit,
    counter,
    gauge,
    histogram,
    metrics_of,
    read_samples,
)

ROOT = Path(__file__).parents[2]
METRICS = all_metrics()
COUNTED_IN = (
    "runtime/scheduler",
    "runtime/cache/host",
    "runtime/storage",
    "runtime/actors/scheduler.py",
    "kernels/compiling/compilations.py",
)
_MIN_LITERAL = 4
"""Letters that a name built from parts must have of its own, to stand for a figure."""


def figure_patterns() -> list[re.Pattern[str]]:
    """Every string of the code that counts, as a pattern; what is filled in matches any word."""
    patterns = []
    for place in COUNTED_IN:
        path = ROOT / place
        for source in [path] if path.is_file() else sorted(path.rglob("*.py")):
            for node in ast.walk(ast.parse(source.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    patterns.append(re.compile(re.escape(node.value)))
                elif isinstance(node, ast.JoinedStr):
                    parts = [part.value for part in node.values if isinstance(part, ast.Constant)]
                    if sum(len(str(part)) for part in parts) >= _MIN_LITERAL:
                        patterns.append(_filled(node))
    return patterns


def _filled(node: ast.JoinedStr) -> re.Pattern[str]:
    return re.compile(
        "".join(
            re.escape(str(part.value)) if isinstance(part, ast.Constant) else r"\w+"
            for part in node.values
        )
    )


def test_names_are_used_once() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_name_tells_kind_and_unit(metric: Metric) -> None:
    words = metric.name.split("_")
    assert (words[-1] == "total") == (metric.kind is MetricKind.COUNTER)
    for unit in (Unit.SECONDS, Unit.BYTES, Unit.PAGES):
        assert (unit.value in words) == (metric.unit is unit)


def test_every_figure_that_a_metric_names_is_counted_somewhere() -> None:
    patterns = figure_patterns()
    sources = [source for metric in METRICS for source in metric.sources]
    names = [source.name for source in sources if isinstance(source, Figure | ByRank)]
    names += [source.prefix + "x" for source in sources if isinstance(source, Family)]

    assert [name for name in names if not any(p.fullmatch(name) for p in patterns)] == []


def test_the_document_is_as_the_definitions_make_it() -> None:
    document = (ROOT / "docs/metrics.md").read_text()
    assert document == with_tables(document)
    assert all(document.count(f"| `{metric.name}` |") == 1 for metric in METRICS)


def test_a_family_gives_a_sample_for_each_of_its_members() -> None:
    ended = counter(
        "ended_total",
        Unit.COUNT,
        "Ended.",
        Family("ended_", ("well", "badly")),
        labels=("who", "why"),
    )

    samples = read_samples((ended,), {"ended_well": 2, "begun": 9}, ("me",))

    assert {(sample.labels, sample.value) for sample in samples} == {
        (("me", "well"), 2.0),
        (("me", "badly"), 0.0),
    }


def test_every_counter_and_histogram_is_there_before_anything_has_happened() -> None:
    ranks = {BY_RANK: [{}], "page_tokens": 16, "l3_breaker": "none"}
    of_engine = [m for t in TELLERS if t.is_engine for m in metrics_of(t.groups)]

    samples = read_samples(of_engine, ranks)

    told = {sample.metric.name for sample in samples}
    assert [
        m.name for m in of_engine if m.kind is not MetricKind.GAUGE and m.name not in told
    ] == []
    assert all(_number(s.value) == 0.0 for s in samples if s.metric.kind is not MetricKind.GAUGE)


def _number(value: float | Distribution) -> float:
    return value.total + value.count if isinstance(value, Distribution) else value


def test_a_gauge_that_is_not_told_gives_no_sample() -> None:
    assert read_samples((gauge("lost", Unit.COUNT, "Lost.", Figure("lost")),), {}) == []


def test_the_label_rank_is_the_rank() -> None:
    steps = counter("steps_total", Unit.COUNT, "Steps.", ByRank("steps"), labels=("rank",))

    samples = read_samples((steps,), {BY_RANK: [{"steps": 3}, {"steps": 5}]})

    assert {sample.labels: sample.value for sample in samples} == {("0",): 3.0, ("1",): 5.0}


def test_a_histogram_counts_a_value_in_every_bucket_that_reaches_it() -> None:
    times = Histogram((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7.0):
        times.observe(seconds)
    took = histogram("took_seconds", (0.1, 1.0), "Took.", Figure("times"))

    [sample] = read_samples((took,), {"times": times.figure()})

    assert isinstance(sample.value, Distribution)
    assert list(sample.value.cumulative()) == [("0.1", 2), ("1.0", 3), ("+Inf", 4)]
    assert (sample.value.count, sample.value.total) == (4, 7.65)
