import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from raydix.runtime.cli.demo_checkpoint import write_demo_checkpoint
from tests.clean_venv import make_clean_venv

ROOT = Path(__file__).resolve().parents[1]
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
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYTHONPATH", "RAY_ADDRESS"))
    }
    environment |= {"PATH": f"{python.parent}:{environment['PATH']}", "RAY_AUTH_MODE": "disabled"}
    folder = tempfile.mkdtemp(prefix="rj-")  # short: unix sockets lie in it
    dashboard = free_port()
    # The agent that takes jobs listens on one fixed port of the host, unless it is told another:
    # there may be more clusters here.
    ports = [
        f"--port={free_port()}",
        f"--dashboard-port={dashboard}",
        f"--dashboard-agent-listen-port={free_port()}",
    ]
    start = [
        str(python),
        "-m",
        "ray.scripts.scripts",
        "start",
        "--head",
        "--block",
        "--num-cpus=4",
        *ports,
    ]
    start += [
        "--include-dashboard=true",
        f"--object-store-memory={200 * 2**20}",
        f"--temp-dir={folder}",
    ]
    with open(os.path.join(folder, "start.log"), "w") as log:
        process = subprocess.Popen(
            start, cwd="/", env=environment, stdout=log, stderr=log, start_new_session=True
        )
    yield Cluster(python, f"http://127.0.0.1:{dashboard}", environment)
    process.terminate()
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)


def test_the_cluster_has_no_raydix_installed(cluster: Cluster) -> None:
    command = [str(cluster.python), "-c", "import raydix"]
    result = subprocess.run(
        command, cwd="/", env=cluster.environment, capture_output=True, text=True, check=False
    )
    assert "No module named 'raydix'" in result.stderr


def test_a_submitted_checkout_generates(cluster: Cluster, tmp_path: Path) -> None:
    write_demo_checkpoint(tmp_path / "checkpoint")
    entrypoint = ["python", "-m", "raydix", "generate", str(tmp_path / "checkpoint")]
    entrypoint += ["--prompt", "Hello", "--max-tokens", "8", "--ignore-eos", "--json"]
    entrypoint += ["--set", "cache.l3.backend=file", "--set", "cache.l3.path=l3"]
    submit = [
        str(cluster.python),
        "-m",
        "ray.scripts.scripts",
        "job",
        "submit",
        "--address",
        cluster.dashboard,
    ]
    for _ in range(60):
        result = subprocess.run(
            [*submit, "--working-dir", ".", "--", *entrypoint],
            cwd=ROOT, env=cluster.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        is_up = "Failed to connect" not in result.stderr and "Connection" not in result.stderr
        if is_up and "No available agent" not in result.stdout + result.stderr:
            break
        time.sleep(1.0)  # Ray has no event that tells when a new cluster takes jobs
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    (answer,) = [line for line in result.stdout.splitlines() if line.startswith('{"request_id"')]
    assert len(json.loads(answer)["token_ids"]) == 8
    assert "/l3 is in the folder that Ray has unpacked for this job" in result.stdout
