"""Debian's Prometheus in a folder of its own, which scrapes what a test names."""

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.free_ports import free_port

_START_S = 30.0
_POLL_S = 0.2


def require_program(name: str, package: str) -> str:
    """The path of a program; skips the test, saying what to install, where there is none."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"needs {name}: apt-get install {package}")
    return path


class Prometheus:
    """A running server."""

    def __init__(self, url: str) -> None:
        self._url = url

    def query(self, expression: str) -> list[Any]:
        """The samples that an expression gives now. Raises AssertionError if it is wrong."""
        answer = self._get("/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
        assert answer["status"] == "success", answer
        result: list[Any] = answer["data"]["result"]
        return result

    def rules(self) -> dict[str, str]:
        """The health of each alert's last evaluation, by its name."""
        groups = self._get("/api/v1/rules")["data"]["groups"]
        return {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}

    def troubles(self) -> dict[str, str]:
        """Why the last scrape of an endpoint failed, by its address; empty if none has."""
        targets = self._get("/api/v1/targets")["data"]["activeTargets"]
        return {of["scrapeUrl"]: of["lastError"] for of in targets if of["lastError"]}

    def wait_ready(self) -> None:
        """Return once it answers."""
        deadline_s = time.monotonic() + _START_S
        while True:
            try:
                urllib.request.urlopen(f"{self._url}/-/ready", timeout=5).close()
                return
            except (urllib.error.URLError, ConnectionError):
                assert time.monotonic() < deadline_s, "Prometheus does not start"
                time.sleep(_POLL_S)

    def _get(self, path: str) -> Any:
        try:
            with urllib.request.urlopen(self._url + path, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return json.load(error)


@contextmanager
def running_prometheus(folder: Path, config: dict[str, Any]) -> Iterator[Prometheus]:
    """A server for the configuration; its rule files are relative to `folder`."""
    program = require_program("prometheus", "prometheus")
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    arguments = [
        program,
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(arguments, stdout=log, stderr=log)
    try:
        prometheus = Prometheus(f"http://127.0.0.1:{port}")
        prometheus.wait_ready()
        yield prometheus
    finally:
        process.terminate()
        process.wait(timeout=30)
