import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from raydix.runtime.actors.engine_record import find_record
from raydix.runtime.cli.demo_checkpoint import write_demo_checkpoint
from tests.clean_venv import make_clean_venv
from tests.free_ports import free_port
from tests.ray_cluster import own_name

ROOT = Path(__file__).resolve().parents[1]
WAIT_S = 240.0
"""The time for what must come; nothing is measured by it."""
_START_S = 60.0
"""The time in which a cluster comes up, also on a busy machine."""
_MAX_STARTS = 3
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.part(together=True)]


@dataclass(frozen=True)
class Cluster:
    """A local Ray cluster whose Python does not know Raydix."""

    python: Path
    dashboard: str
    environment: dict[str, str]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    python = make_clean_venv(tmp_path_factory.mktemp("venv"), with_pip=False)
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYTHONPATH", "RAY_ADDRESS"))
    }
    environment |= {"PATH": f"{python.parent}:{environment['PATH']}", "RAY_AUTH_MODE": "disabled"}
    with contextlib.ExitStack() as stack:
        # A port that was free may be taken by another process before Ray listens.
        for _ in range(_MAX_STARTS):
            dashboard = stack.enter_context(_started(python, environment))
            if dashboard is not None:
                break
        assert dashboard is not None, "no cluster has come up"
        yield Cluster(python, dashboard, environment)


@contextlib.contextmanager
def _started(python: Path, environment: dict[str, str]) -> Iterator[str | None]:
    """The dashboard of a new cluster; None if that has not come up."""
    folder = tempfile.mkdtemp(prefix="rj-")  # short: unix sockets lie in it
    dashboard = free_port()
    # The agent that takes jobs listens on one fixed port of the host, unless it is told another:
    # there may be more clusters here.
    ports = [
        f"--port={free_port()}",
        f"--dashboard-port={dashboard}",
        f"--dashboard-agent-listen-port={free_port()}",
    ]
    start = [str(python), "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    start += ["--num-cpus=4", *ports, "--include-dashboard=true"]
    start += [f"--object-store-memory={200 * 2**20}", f"--temp-dir={folder}"]
    with open(os.path.join(folder, "start.log"), "w") as log:
        process = subprocess.Popen(
            start, cwd="/", env=environment, stdout=log, stderr=log, start_new_session=True
        )
    address = f"http://127.0.0.1:{dashboard}"
    give_up_s = time.monotonic() + _START_S
    while not is_answered(address) and process.poll() is None and time.monotonic() < give_up_s:
        time.sleep(0.2)
    yield address if is_answered(address) else None

    process.terminate()
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)


def job(cluster: Cluster, verb: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """What `ray job VERB` says, from the checkout."""
    command = [str(cluster.python), "-m", "ray.scripts.scripts", "job", verb]
    return subprocess.run(
        [*command, "--address", cluster.dashboard, *arguments],
        cwd=ROOT, env=cluster.environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def is_answered(dashboard: str) -> bool:
    """Whether a new cluster's dashboard is there."""
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{dashboard}/api/version", timeout=_START_S).is_success
    return False


def log_of(cluster: Cluster, name: str) -> str:
    """What a job has written so far. `ray job logs` says the same, and takes seconds of a core."""
    told: dict[str, str] = httpx.get(
        f"{cluster.dashboard}/api/jobs/{name}/logs", timeout=WAIT_S
    ).json()
    return told["logs"]


def submitted(
    cluster: Cluster, options: list[str], entrypoint: list[str]
) -> "subprocess.CompletedProcess[str]":
    """What comes of a job, which is submitted as the README says once the cluster takes jobs."""
    for _ in range(60):
        result = job(cluster, "submit", *options, "--working-dir", ".", "--", *entrypoint)
        is_up = "Failed to connect" not in result.stderr and "Connection" not in result.stderr
        if is_up and "No available agent" not in result.stdout + result.stderr:
            break
        time.sleep(1.0)  # Ray has no event that tells when a new cluster takes jobs
    return result


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
    result = submitted(cluster, [], entrypoint)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    (answer,) = [line for line in result.stdout.splitlines() if line.startswith('{"request_id"')]
    assert len(json.loads(answer)["token_ids"]) == 8
    assert "/l3 is in the folder that Ray has unpacked for this job" in result.stdout


def test_a_submitted_service_serves_until_its_job_is_stopped(
    cluster: Cluster, tmp_path: Path
) -> None:
    name, port = own_name("job"), free_port()
    write_demo_checkpoint(tmp_path / "checkpoint")
    config = tmp_path / "engine.yaml"
    config.write_text(
        f"model: {{path: {tmp_path / 'checkpoint'}}}\n"
        "cache: {l1: {num_pages: 64}, l2: {bytes_per_node: 16MiB, keep_s: 0}}\n"
    )
    entrypoint = ["python", "-m", "raydix", "serve", str(config), "--nodes", "2", "--name", name]
    entrypoint += ["--http", f"127.0.0.1:{port}", "--model-name", "demo", "--drain-s", "1"]
    # Else Ray kills it 3 s after SIGTERM, drained or not.
    patience = json.dumps({"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "120"}})
    options = ["--no-wait", "--submission-id", name, "--runtime-env-json", patience]
    result = submitted(cluster, options, entrypoint)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]

    log = ""
    give_up_s = time.monotonic() + WAIT_S
    while "HTTP is ready at " not in log:
        assert time.monotonic() < give_up_s, log[-4000:]
        time.sleep(0.5)
        log = log_of(cluster, name)
    assert f"service {name} wants 2 engines; 1 wait for a node" in log
    body = {"model": "demo", "prompt": "Hello", "max_tokens": 4, "ignore_eos": True}
    answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=WAIT_S)
    assert answer.json()["usage"]["completion_tokens"] == 4
    owned = (name, f"{name}/1")
    assert all(find_record(each) is not None for each in owned)

    stopped = job(cluster, "stop", name)
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert "was stopped" in job(cluster, "status", name).stdout
    assert [each for each in owned if find_record(each) is not None] == []
