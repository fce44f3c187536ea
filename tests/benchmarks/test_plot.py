"""Pictures of records."""

from pathlib import Path

import pytest

from benchmarks.plot import draw
from benchmarks.record import REPOSITORY
from benchmarks.table import read_records


def test_every_kept_record_can_be_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for record in read_records(REPOSITORY / "benchmarks" / "results"):
        path = tmp_path / f"{record['benchmark']}.png"
        draw(record, path)
        assert path.read_bytes().startswith(b"\x89PNG")
