"""The tables of `docs/metrics.md`, which follow its text, are made from the definitions.

python -m raydix.runtime.dashboards.document docs/metrics.md     # write them anew
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from raydix.runtime.dashboards.catalogue import TELLERS
from raydix.runtime.metrics import Metric, MetricKind

MARKER = "<!-- What follows is made from the code. -->\n"


def render_tables() -> str:
    """What follows the marker."""
    return "\n" + "\n".join(_sections())


def with_tables(document: str) -> str:
    """The document as it should be: its own text up to the marker, then the tables."""
    text, marker, _ = document.partition(MARKER)
    if not marker:
        raise ValueError(f"the document lacks the line {MARKER.strip()!r}, which the tables follow")
    return text + marker + render_tables()


def _sections() -> Iterator[str]:
    for teller in TELLERS:
        yield f"## {teller.title}\n"
        for group in teller.groups:
            yield f"### {group.title}\n"
            yield "| metric | kind | unit | labels | |\n|---|---|---|---|---|"
            yield from map(document_row, group.metrics)
            yield from _buckets(group.metrics)
            yield ""


def document_row(metric: Metric) -> str:
    """The line of one metric."""
    description = metric.description.replace("|", "\\|")
    kind, unit, labels = metric.kind.value, metric.unit.value, ", ".join(metric.labels)
    return f"| `{metric.name}` | {kind} | {unit} | {labels} | {description} |"


def _buckets(metrics: tuple[Metric, ...]) -> Iterator[str]:
    """Which histograms end their buckets where."""
    names: dict[tuple[float, ...], list[str]] = {}
    for metric in metrics:
        if metric.kind is MetricKind.HISTOGRAM:
            names.setdefault(metric.bounds, []).append(f"`{metric.name}`")
    for bounds, own in names.items():
        yield f"\nBuckets of {', '.join(own)}, in seconds: {', '.join(f'{b:g}' for b in bounds)}."


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_tables(path.read_text()))
