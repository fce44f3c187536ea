"""`raydix trace make` writes what `raydix plan` reads."""

from collections.abc import Callable
from pathlib import Path

import pytest

from raydix.runtime.cli.trace import Workload
from raydix.runtime.foresight.traces import read_trace
from raydix.runtime.foresight.workloads import WORKLOADS

Run = Callable[..., int]
Capture = pytest.CaptureFixture[str]


def test_a_made_up_trace_is_one_that_can_be_read(run: Run, capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    assert run("trace", "make", "long_context", "--seed", "3", "--out", str(path)) == 0
    num_requests = len(read_trace(path))
    assert f"{num_requests:,} requests" in capsys.readouterr().out


def test_a_file_that_cannot_be_written_is_told(run: Run, capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "none" / "trace.jsonl"
    assert run("trace", "make", "long_context", "--out", str(path)) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_every_workload_has_a_name() -> None:
    assert {str(each) for each in Workload} == set(WORKLOADS)
