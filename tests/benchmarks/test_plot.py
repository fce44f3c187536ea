"""Pictures of records."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.plot import draw, read_record
from benchmarks.records.record import REPOSITORY, RESULTS
from raydix.errors import BadRequest, ConfigError
from raydix.runtime.cli.bench import Plan, record_of
from raydix.runtime.cli.load.arrivals import ClosedLoop
from raydix.runtime.cli.load.report import Outcome, summarise


def test_every_kept_record_can_be_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    records = sorted(map(read_record, RESULTS.glob("*.json")), key=lambda each: len(each.figures))

    # A second each, and what differs between them is how many figures they have.
    for record in (records[0], records[len(records) // 2], records[-1]):
        path = tmp_path / f"{record.benchmark}.png"
        draw(record, path)
        assert path.read_bytes().startswith(b"\x89PNG")


def test_a_record_of_raydix_bench_can_be_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    outcome = Outcome(
        sent_s=0.0, first_s=0.1, last_s=0.5, ended_s=0.5, num_prompt_tokens=9, num_output_tokens=5
    )
    plan = Plan(
        requests=(), load=ClosedLoop(max_concurrent=1), slo=None, salt=None, with_cold=False
    )
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(record_of(plan, {"all": summarise([outcome], None)})))

    subprocess.run([sys.executable, "-m", "benchmarks.plot", path], cwd=REPOSITORY, check=True)

    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    record = read_record(RESULTS / "reload.json")
    folder = tmp_path / "reload.png"
    folder.mkdir()

    with pytest.raises(ConfigError, match="cannot be written: Is a directory"):
        draw(record, folder)


FIGURE = {"name": "fast", "value": 1.5, "unit": "ms"}


def record_text(figures: Sequence[Mapping[str, Any]], benchmark: str | None = "sums") -> bytes:
    return json.dumps({"benchmark": benchmark, "figures": figures}).encode()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\xff", "the file: Invalid JSON"),
        (b"{", "the file: Invalid JSON"),
        (b"[]", "the file: Input should be an object"),
        (record_text([FIGURE], benchmark=None), "benchmark: Input should be a valid string"),
        (record_text([]), "figures: .* at least 1 item"),
        (record_text([FIGURE, {"name": "slow"}]), "figures.1.value: Field required"),
        (record_text([{"name": "fast", "value": 1.5}]), "figures.0.unit: Field required"),
        (record_text([{**FIGURE, "value": "fast"}]), "figures.0.value: .* valid number"),
        (record_text([{**FIGURE, "min_value": []}]), "figures.0.min_value: .* valid number"),
    ],
)
def test_a_file_that_is_no_record_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(content)

    with pytest.raises(BadRequest, match=problem):
        read_record(path)
