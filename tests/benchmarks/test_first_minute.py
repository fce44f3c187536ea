import json
import subprocess
import sys

import pytest

from benchmarks.first_minute import sum_over_ranks


@pytest.mark.part
@pytest.mark.ray
@pytest.mark.slow
def test_two_minutes_of_every_kind_of_request_are_compared() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.first_minute"]
        + ["--tiny", "--device", "cpu", "--seconds", "2"],
        capture_output=True,
        text=True,
        timeout=600,
    )

    assert done.returncode == 0, done.stderr
    figures = {each["name"]: each["value"] for each in json.loads(done.stdout)["figures"]}
    assert figures["kernels compiled or found after ready, dense_l16"] == 0
    assert figures["requests, first minute, dense_l16"] > 10
    assert figures["TTFT p99, second minute, dense_l16"] > 0
    assert figures["command to ready, kernels there, dense_l16"] > 0


def test_late_kernels_of_all_ranks_are_added_up() -> None:
    stats = {
        "scheduler": {"kernels_compiled_serving": 100},
        "gpu0": {"kernels_compiled_serving": 1, "kernels_found_serving": 2},
        "gpu1": {"kernels_compiled_serving": 4},
        "gpu2": None,
    }

    assert sum_over_ranks(stats, ("kernels_compiled_serving", "kernels_found_serving")) == 7
