"""Pictures of records."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.plot import draw, read_record
from benchmarks.record import REPOSITORY
from benchmarks.table import read_records
from raydix.errors import BadRequest
from raydix.runtime.cli.bench import Plan, record_of
from raydix.runtime.cli.load.arrivals import ClosedLoop
from raydix.runtime.cli.load.report import Outcome, summarise


def test_every_kept_record_can_be_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for record in read_records(REPOSITORY / "benchmarks" / "results"):
        path = tmp_path / f"{record['benchmark']}.png"
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


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"\xff", "is no JSON"), (b"{", "is no JSON"), (b"[]", "has no figures")],
)
def test_a_file_that_is_no_record_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(content)

    with pytest.raises(BadRequest, match=problem):
        read_record(path)
