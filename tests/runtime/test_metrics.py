"""What metrics declare, held against the code that counts and the document that lists them."""

import ast
import re
from pathlib import Path

import pytest

from raydix.runtime.actors.host_metrics import HOST_METRICS
from raydix.runtime.actors.scheduler_metrics import SCHEDULER_METRICS
from raydix.runtime.actors.storage_metrics import STORAGE_METRICS
from raydix.runtime.metrics import Family, Figure, Metric, MetricKind, Unit, counter, read_samples

ROOT = Path(__file__).parents[2]
METRICS = (*SCHEDULER_METRICS, *HOST_METRICS, *STORAGE_METRICS)
COUNTED_IN = (
    "runtime/scheduler",
    "runtime/cache/host",
    "runtime/storage",
    "runtime/actors/scheduler.py",
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
    names = [source.name for source in sources if isinstance(source, Figure)]
    names += [source.prefix + "x" for source in sources if isinstance(source, Family)]

    assert [name for name in names if not any(p.fullmatch(name) for p in patterns)] == []


def test_the_document_lists_every_metric_as_it_is_declared() -> None:
    document = (ROOT / "docs/metrics.md").read_text().splitlines()
    rows = [line for line in document if line.startswith("| `")]
    assert rows == [_row(metric) for metric in METRICS]


def _row(metric: Metric) -> str:
    description = metric.description.replace("|", "\\|")
    kind, unit, labels = metric.kind.value, metric.unit.value, ", ".join(metric.labels)
    return f"| `{metric.name}` | {kind} | {unit} | {labels} | {description} |"


def test_a_family_gives_a_sample_for_each_figure_with_its_prefix() -> None:
    ended = counter("ended_total", Unit.COUNT, "Ended.", Family("ended_"), labels=("who", "why"))

    samples = read_samples((ended,), {"ended_well": 2, "ended_badly": 1, "begun": 9}, ("me",))

    assert {(sample.labels, sample.value) for sample in samples} == {
        (("me", "well"), 2.0),
        (("me", "badly"), 1.0),
    }


def test_a_figure_that_is_not_told_gives_no_sample() -> None:
    assert read_samples((counter("lost_total", Unit.COUNT, "Lost.", Figure("lost")),), {}) == []
