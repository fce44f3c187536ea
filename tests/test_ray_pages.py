"""A private cluster can have Ray's dashboard, whose pages show the engine."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.free_ports import free_port
from tests.prometheus_server import require_program
from tests.ray_cluster import own_name

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.part(together=True)]

ROOT = Path(__file__).parents[1]
_PAGE_S = 60.0
_EXPORTED_S = 45.0
_AGENT_PORT = 52365
"""Where the dashboard's agent of a host's first cluster listens, unless it is told otherwise."""


@dataclass(frozen=True)
class Cluster:
    """Where a private cluster answers, and what its engine is called."""

    name: str
    dashboard: str
    metrics: str


@pytest.fixture(scope="module")
def other_cluster() -> Iterator[None]:
    """What the agent of another cluster of this host takes is taken."""
    with socket.socket() as agent:
        with contextlib.suppress(OSError):  # there is one
            agent.bind(("", _AGENT_PORT))
            agent.listen()
        yield


@pytest.fixture(scope="module")
def cluster(checkpoint: Path, other_cluster: None) -> Iterator[Cluster]:
    """An engine in a process of its own, as one process has one cluster."""
    name = own_name("seen")
    dashboard, metrics, serve = free_port(), free_port(), free_port()
    arguments = [str(checkpoint), name, str(dashboard), str(metrics), str(serve)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.ray_pages", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert "up\n" in lines, "the engine has not started; its standard error says why"
        yield Cluster(name, f"http://127.0.0.1:{dashboard}", f"http://127.0.0.1:{metrics}/metrics")
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=60)


def page_text(url: str, folder: Path, wanted: list[str]) -> str:
    """What a browser makes of a page, once all that is wanted is there, or after some time."""
    browser = require_program("chromium", "chromium")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}"]
    options += ["--virtual-time-budget=20000", "--dump-dom"]
    deadline_s = time.monotonic() + _PAGE_S
    while True:
        run = subprocess.run(
            [browser, *options, url], capture_output=True, text=True, timeout=90, check=False
        )
        if all(word in run.stdout for word in wanted) or time.monotonic() > deadline_s:
            return run.stdout


@pytest.mark.parametrize(
    ("page", "wanted"),
    [
        ("actors", ["raydix:NAME:scheduler", "raydix:l2-", "raydix:NAME:gpu0", "ALIVE"]),
        ("jobs", ["tests.ray_pages", "RUNNING"]),
        ("serve", ["an-application", "RUNNING"]),
    ],
)
def test_a_browser_shows_the_page(
    cluster: Cluster, tmp_path: Path, page: str, wanted: list[str]
) -> None:
    wanted = [word.replace("NAME", cluster.name) for word in wanted]
    text = page_text(f"{cluster.dashboard}/#/{page}", tmp_path, wanted)
    assert [word for word in wanted if word not in text] == []


def test_metrics_are_at_the_port_that_was_asked_for(cluster: Cluster) -> None:
    deadline_s = time.monotonic() + _EXPORTED_S
    text = ""
    while "ray_raydix_steps_total" not in text and time.monotonic() < deadline_s:
        with urllib.request.urlopen(cluster.metrics, timeout=10) as answer:
            text = answer.read().decode()
        time.sleep(0.5)
    assert "ray_raydix_steps_total" in text


@pytest.mark.parametrize("actor", ["supervisor", "scheduler", "gpu0"])
def test_the_log_of_an_actor_says_where_its_log_is(cluster: Cluster, actor: str) -> None:
    def read(path: str) -> str:
        """A page of the dashboard, which knows the agent of a node a while after its start."""
        deadline_s = time.monotonic() + _PAGE_S
        while True:
            try:
                with urllib.request.urlopen(f"{cluster.dashboard}{path}", timeout=30) as answer:
                    return str(answer.read().decode())
            except urllib.error.HTTPError as error:
                if time.monotonic() > deadline_s:
                    pytest.fail(f"{path}: {error}: {error.read().decode()}")
                time.sleep(0.5)

    actors = json.loads(read("/logical/actors"))["data"]["actors"]
    [wanted] = [
        key for key, each in actors.items() if each["name"].endswith(f"{cluster.name}:{actor}")
    ]

    assert "`raydix logs NAME` shows it" in read(f"/api/v0/logs/file?actor_id={wanted}&suffix=err")
