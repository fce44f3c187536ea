import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from raydix.runtime.demo_checkpoint import write_demo_checkpoint
from tests.clean_venv import make_clean_venv

ROOT = Path(__file__).resolve().parents[1]
CLUSTER = """
import ray, sys
ray.init(num_cpus=4, include_dashboard=True, dashboard_host="127.0.0.1", dashboard_port=int(sys.argv[1]),
         object_store_memory=200 * 2**20, _temp_dir=sys.argv[2])
print("ready", flush=True)
sys.stdin.read()
"""

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@dataclass(frozen=True)
class Cluster:
    """A local Ray cluster whose Python does not know Raydix."""

    python: Path
    dashboard: str
    environment: dict[str, str]


def free_port() -> int:
    """A port outside Ray's range for workers, 10002 to 19999."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if not 10002 <= port <= 19999:
            return port


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    python = make_clean_venv(tmp_path_factory.mktemp("venv"))
    port = free_port()
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHONPATH", "RAY_ADDRESS"))}
    environment |= {"PATH": f"{python.parent}:{environment['PATH']}", "RAY_AUTH_MODE": "disabled"}
    folder = tempfile.mkdtemp(prefix="rj-")  # short: unix sockets lie in it
    process = subprocess.Popen(
        [str(python), "-c", CLUSTER, str(port), folder],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/", env=environment,
    )  # fmt: skip
    assert process.stdout is not None
    assert any(line.strip() == "ready" for line in process.stdout)
    yield Cluster(python, f"http://127.0.0.1:{port}", environment)
    process.communicate()
    shutil.rmtree(folder, ignore_errors=True)


def test_the_cluster_has_no_raydix_installed(cluster: Cluster) -> None:
    command = [str(cluster.python), "-c", "import raydix"]
    result = subprocess.run(command, cwd="/", env=cluster.environment, capture_output=True, text=True, check=False)
    assert "No module named 'raydix'" in result.stderr


def test_a_submitted_checkout_generates(cluster: Cluster, tmp_path: Path) -> None:
    write_demo_checkpoint(tmp_path / "checkpoint")
    entrypoint = ["python", "-m", "raydix", "generate", str(tmp_path / "checkpoint")]
    entrypoint += ["--prompt", "Hello", "--max-tokens", "8", "--ignore-eos", "--json"]
    submit = [str(cluster.python), "-m", "ray.scripts.scripts", "job", "submit", "--address", cluster.dashboard]
    for _ in range(60):
        result = subprocess.run(
            [*submit, "--working-dir", ".", "--", *entrypoint],
            cwd=ROOT, env=cluster.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if "No available agent" not in result.stdout + result.stderr:
            break
        time.sleep(1.0)  # Ray has no event that tells when a new cluster takes jobs
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    (answer,) = [line for line in result.stdout.splitlines() if line.startswith('{"request_id"')]
    assert len(json.loads(answer)["token_ids"]) == 8
