"""The record that benchmarks print, and the exit status that bars decide."""

import json
from pathlib import Path

import pytest

from benchmarks.records.record import Figure, commit, report


def test_the_record_is_one_line_of_json_with_all_its_parts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status = report(
        "sums", {"size": 3}, [Figure(name="time", value=1.23456, unit="us", max_value=2.0)]
    )

    out, err = capsys.readouterr()
    record = json.loads(out)
    assert status == 0
    assert len(out.splitlines()) == 1
    assert set(record) == {"benchmark", "commit", "machine", "config", "figures"}
    assert record["config"] == {"size": 3}
    assert record["figures"] == [{"name": "time", "value": 1.235, "unit": "us", "max_value": 2.0}]
    assert "time: 1.235 us, bar at most 2: ok" in err
    assert record["commit"] == commit()


def test_a_ratio_is_told_without_its_unit(capsys: pytest.CaptureFixture[str]) -> None:
    report("sums", {}, [Figure(name="ratio", value=2.0, unit="1", max_value=2.0)])

    assert "ratio: 2, bar at most 2: ok" in capsys.readouterr().err


def test_a_kept_record_is_the_printed_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "results"

    report(
        "sums",
        {"size": 3},
        [Figure(name="time", value=1.0, unit="us")],
        keep_in=folder,
        at_commit="abc",
    )

    kept = json.loads((folder / "sums.json").read_text())
    assert kept == json.loads(capsys.readouterr().out)
    assert kept["commit"] == "abc"


def test_a_baseline_goes_with_its_figure(capsys: pytest.CaptureFixture[str]) -> None:
    report(
        "sums",
        {},
        [Figure(name="time", value=2.0, unit="us", baseline=1.23456, baseline_name="the wire")],
    )

    [figure] = json.loads(capsys.readouterr().out)["figures"]
    assert figure == {
        "name": "time",
        "value": 2.0,
        "unit": "us",
        "baseline": 1.235,
        "baseline_name": "the wire",
    }


@pytest.mark.parametrize(
    ("figure", "status"),
    [
        (Figure(name="a", value=2.0, unit="us", max_value=2.0), 0),
        (Figure(name="a", value=2.1, unit="us", max_value=2.0), 1),
        (Figure(name="a", value=1.9, unit="tokens/s", min_value=2.0), 1),
        (Figure(name="a", value=2.0, unit="tokens/s", min_value=2.0), 0),
        (Figure(name="a", value=float("nan"), unit="us", max_value=2.0), 1),
        (Figure(name="a", value=1e9, unit="us"), 0),
    ],
)
def test_a_missed_bar_is_exit_status_one(
    figure: Figure, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report("sums", {}, [Figure(name="b", value=0, unit="us"), figure]) == status
    assert ("MISSED" in capsys.readouterr().err) == bool(status)
