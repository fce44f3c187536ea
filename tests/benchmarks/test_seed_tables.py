"""The document of claims has the figures of the record, and a made-up workload always the same."""

import json

import pytest

from benchmarks.records.record import RESULTS
from benchmarks.seed_tables import DOCUMENT, L1_PARTS, measure, table_lines


def test_the_document_has_the_records_figures() -> None:
    record = json.loads((RESULTS / "seed_tables.json").read_text())
    values = {figure["name"]: figure["value"] for figure in record["figures"]}
    assert "\n".join(table_lines(values)) in DOCUMENT.read_text()


def test_a_workloads_figures_are_those_of_the_record() -> None:
    record = json.loads((RESULTS / "seed_tables.json").read_text())
    values = {figure["name"]: figure["value"] for figure in record["figures"]}
    found = {figure.name: figure.value for figure in measure("long_context")}
    assert len(found) == 1 + 6 * len(L1_PARTS)
    for name, value in found.items():
        assert values[name] == pytest.approx(value, rel=1e-3), name
