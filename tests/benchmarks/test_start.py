import json
import subprocess
import sys

import pytest


@pytest.mark.part
@pytest.mark.ray
@pytest.mark.slow
def test_starts_tell_their_phases_and_a_killed_actor_its_gap() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.start"]
        + ["--tiny", "--device", "cpu", "--repeats", "1", "--model", "dense_l16"],
        capture_output=True,
        text=True,
        timeout=600,
    )

    assert done.returncode == 0, done.stderr
    figures = {each["name"]: each["value"] for each in json.loads(done.stdout)["figures"]}
    for part in (
        "serve: Ray cluster joined",
        "gpu0: weights drawn",
        "host: arena of 16MiB made",
    ):
        assert 0 < figures[f"{part}, dense_l16"] < figures["first token, dense_l16"]
    assert figures["longest gap, GPU actor killed, dense_l16"] > 0.1
    assert "critical path: " in done.stderr
