import json
import subprocess
import sys

import pytest


@pytest.mark.part
@pytest.mark.ray
@pytest.mark.slow
def test_http_is_compared_with_the_engines_own_api() -> None:
    # A process of its own: its engine has a cluster of its own, where the server finds it by name.
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.http_overhead"]
        + ["--tiny", "--device", "cpu", "--repeats", "1"],
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert done.returncode == 0, done.stderr
    figures = {each["name"]: each for each in json.loads(done.stdout)["figures"]}
    assert set(figures) == {
        f"{what}, {streams}"
        for what in ("TTFT", "throughput")
        for streams in ("1 stream", "4 streams")
    }
    assert all(each["value"] > 0 and each["baseline"] > 0 for each in figures.values())
