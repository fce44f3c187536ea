import json
import subprocess
import sys

import pytest

pytest.importorskip("xgrammar")


@pytest.mark.part
@pytest.mark.ray
@pytest.mark.slow
def test_formed_answers_are_compared_with_free_ones() -> None:
    # A process of its own: its engine has a cluster of its own.
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.structured"]
        + ["--tiny", "--device", "cpu", "--repeats", "1"],
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert done.returncode == 0, done.stderr
    figures = {each["name"]: each["value"] for each in json.loads(done.stdout)["figures"]}
    assert [name for name in figures if name.startswith("TPOT with a schema")] == [
        f"TPOT with a schema per row over free, batch {batch}" for batch in (1, 4)
    ]
    assert all(value > 0 for name, value in figures.items() if name.startswith("TPOT"))
