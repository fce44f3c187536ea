import json
import subprocess
import sys

import pytest


@pytest.mark.part
def test_the_threads_of_an_actor_and_the_parts_of_a_step_are_told_apart() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.host_share", "--tiny", "--device", "cpu"],
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert done.returncode == 0, done.stderr
    figures = {each["name"]: each["value"] for each in json.loads(done.stdout)["figures"]}
    for batch in (1, 16):
        host = figures[f"launcher, batch {batch}"] + figures[f"completer, batch {batch}"]
        assert figures[f"host, batch {batch}"] == pytest.approx(host, rel=1e-2)
        assert figures[f"launcher, repeated, batch {batch}"] > 0
        assert figures[f"columns made, batch {batch}"] > 0
        assert figures[f"plan decoded, batch {batch}"] < figures[f"launcher, batch {batch}"]
