"""Processes that end while they start an engine."""

import subprocess
import sys
from pathlib import Path

from tests.ray_cluster import own_name

ROOT = Path(__file__).parents[4]
PROGRAM = """
import sys, threading, time
from raydix.runtime.actors.bootstrap import launch
from raydix.runtime.actors.threads import on_thread
from raydix.runtime.config.loading import load_config

joined = threading.Event()

class Cluster:
    def stop(self):
        # As long as Ray may take.
        time.sleep(0.5)
        print("stopped", flush=True)

def join_cluster(*_):
    joined.set()
    return Cluster()

launch.join_cluster = join_cluster
launch.check_model = lambda _: time.sleep(600)
config = load_config({"model": {"path": sys.argv[1]}})
on_thread("start", launch.start_engine, config, sys.argv[2])
joined.wait()
"""


def test_a_process_that_ends_while_its_engine_starts_takes_the_start_back(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), own_name("early")],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr
