"""The tables of figures, and the records that they are made from."""

import pytest

from benchmarks.records.headlines import Headline, render_headlines
from benchmarks.records.record import REPOSITORY
from benchmarks.table import BEGIN, END, Record, documents, insert, read_records, render

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


def test_documents_say_what_the_records_say() -> None:
    due = documents(read_records(REPOSITORY / "benchmarks" / "results"))

    assert {path.name for path in due} == {"README.md", "benchmarks.md"}
    assert [path.name for path, text in due.items() if path.read_text() != text] == [], (
        "run python -m benchmarks.table"
    )


def test_every_figure_with_a_bar_has_a_row() -> None:
    rows = render([RECORD]).splitlines()[2:]

    assert rows == [
        "| **sums** (a GPU, abc) | | | |",
        "| fast | 1.5 ms | ≤ 2 ms | 1.25 ms, the wire |",
        "| slow | **0.5** | ≥ 0.75 |  |",
    ]


def test_a_headline_shows_one_figure_and_its_device() -> None:
    headlines = [Headline(says="Sums", benchmark="sums", figure="fast")]

    rows = render_headlines([RECORD], headlines).splitlines()[2:]

    assert rows == ["| Sums | 1.5 ms | ≤ 2 ms | 1.25 ms, the wire | a GPU |"]


def test_a_headline_without_its_figure_is_refused() -> None:
    headlines = [Headline(says="Sums", benchmark="sums", figure="lost")]

    with pytest.raises(KeyError, match="lost"):
        render_headlines([RECORD], headlines)


def test_only_the_text_between_the_markers_changes() -> None:
    text = f"above\n{BEGIN}\nold\n{END}\nbelow\n"

    assert insert(text, "new") == f"above\n{BEGIN}\nnew\n{END}\nbelow\n"


@pytest.mark.parametrize(
    "text", ["", BEGIN, f"{END}{BEGIN}", f"{BEGIN}{BEGIN}{END}", f"{BEGIN}{END}{END}"]
)
def test_markers_that_are_not_there_once_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="each once"):
        insert(text, "new")
