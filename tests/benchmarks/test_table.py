"""The README's table, and the records that it is made from."""

import pytest

from benchmarks.record import REPOSITORY
from benchmarks.table import BEGIN, END, Record, insert, read_records, render

RECORD: Record = {
    "benchmark": "sums",
    "commit": "abc",
    "machine": {"processor": "a processor"},
    "config": {"gpu": "a GPU"},
    "figures": [
        {
            "name": "fast",
            "value": 1.5,
            "unit": "ms",
            "max_value": 2.0,
            "baseline": 1.25,
            "baseline_name": "the wire",
        },
        {"name": "slow", "value": 0.5, "unit": "1", "min_value": 0.75},
        {"name": "shown elsewhere", "value": 3.0, "unit": "ms"},
    ],
}


def test_readme_says_what_the_records_say() -> None:
    readme = (REPOSITORY / "README.md").read_text()

    table = render(read_records(REPOSITORY / "benchmarks" / "results"))

    assert readme == insert(readme, table), "run python -m benchmarks.table"


def test_every_figure_with_a_bar_has_a_row() -> None:
    rows = render([RECORD]).splitlines()[2:]

    assert rows == [
        "| **sums** (a GPU, abc) | | | |",
        "| fast | 1.5 ms | ≤ 2 ms | 1.25 ms, the wire |",
        "| slow | **0.5** | ≥ 0.75 |  |",
    ]


def test_only_the_text_between_the_markers_changes() -> None:
    text = f"above\n{BEGIN}\nold\n{END}\nbelow\n"

    assert insert(text, "new") == f"above\n{BEGIN}\nnew\n{END}\nbelow\n"


@pytest.mark.parametrize(
    "text", ["", BEGIN, f"{END}{BEGIN}", f"{BEGIN}{BEGIN}{END}", f"{BEGIN}{END}{END}"]
)
def test_markers_that_are_not_there_once_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="each once"):
        insert(text, "new")
