"""The README's plot."""

import json
from pathlib import Path

import pytest

from benchmarks.readme_plot import BARS, IMAGES, RECORD, THEMES, Theme, draw
from benchmarks.records.rows import with_unit


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_kept_plot_says_what_the_record_says(theme: Theme) -> None:
    kept = (IMAGES / f"first-token-{theme.name}.svg").read_text()
    figures = {figure["name"]: figure for figure in json.loads(RECORD.read_text())["figures"]}

    for place, name in BARS.items():
        value = with_unit(figures[name]["value"], figures[name]["unit"])
        assert f">{place}<" in kept
        assert f">{value}<" in kept, "run python -m benchmarks.readme_plot"


def test_the_same_record_gives_the_same_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    record = json.loads(RECORD.read_text())

    for name in ("first.svg", "second.svg"):
        draw(record, THEMES[0], tmp_path / name)

    assert (tmp_path / "first.svg").read_bytes() == (tmp_path / "second.svg").read_bytes()
