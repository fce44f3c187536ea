"""Prometheus reads a loaded engine: every panel and alert has something to show."""

import asyncio
import json
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from typer.testing import CliRunner

from raydix.runtime.actors.bootstrap.cluster import PrivateCluster, metrics_url
from raydix.runtime.actors.bootstrap.launch import start_engine
from raydix.runtime.actors.links.address import TcpAddress
from raydix.runtime.api.client import AsyncLLM
from raydix.runtime.cli.main import app
from raydix.runtime.config.loading import load_config
from raydix.runtime.dashboards.alerts import make_alerts
from raydix.runtime.dashboards.catalogue import all_metrics
from raydix.runtime.dashboards.files import DASHBOARD_FILE
from raydix.runtime.dashboards.panels import Endpoint
from raydix.runtime.model.families.table import Family
from raydix.runtime.server.app import build_app
from raydix.runtime.server.listener import listening
from tests.checkpoints import make_checkpoint
from tests.prometheus_server import Prometheus, require_program, running_prometheus
from tests.ray_cluster import own_name

pytestmark = [pytest.mark.ray, pytest.mark.slow]

ROOT = Path(__file__).parents[1]
ENDPOINTS = tuple(Endpoint)
_SCRAPE = "10s"
"""The interval at which Ray exports. The page of a cluster that has had many engines takes a while.
"""
_RATE_RANGE = "60s"
"""A rate needs two values."""
_ALL_SAMPLES_S = 300.0
_PAUSE_S = 1.0


@dataclass(frozen=True)
class Watched:
    """What a Prometheus sees of an engine under load."""

    engine: str
    prometheus: Prometheus
    http_url: str
    folders: dict[Endpoint, Path]


class Load(threading.Thread):
    """Requests and a server, on a loop of their own, until `stop`."""

    def __init__(self, engine: str) -> None:
        super().__init__()
        self.engine = engine
        self.url: str | None = None
        self.is_up = threading.Event()
        self._stopped = threading.Event()

    def run(self) -> None:
        asyncio.run(self._serve())

    def stop(self) -> None:
        self._stopped.set()
        self.join()

    async def _serve(self) -> None:
        async with (
            await AsyncLLM.connect(self.engine) as engine,
            listening(build_app({"m": engine}, None), TcpAddress("127.0.0.1", 0), 1.0) as url,
        ):
            await asyncio.to_thread(_read, f"{url}/v1/models")
            self.url = url
            self.is_up.set()
            prompts = [list(range(start, start + 90)) for start in range(0, 60, 5)]
            while not self._stopped.is_set():
                await asyncio.gather(*(_generate(engine, prompt) for prompt in prompts))
                await engine.flush()
                # All panels have samples of little load, too, and others need the cores.
                await asyncio.sleep(_PAUSE_S)


async def _generate(engine: AsyncLLM, prompt: list[int]) -> None:
    async for _ in engine.generate(prompt, {"max_tokens": 8, "temperature": 0.0}):
        pass


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        text: str = answer.read().decode()
    return text


@pytest.fixture(scope="module")
def watched(ray_cluster: PrivateCluster) -> Iterator[Watched]:
    """Two ranks that share experts, three tiers, and Prometheus at both endpoints."""
    folder = Path(tempfile.mkdtemp(prefix="raydix-dashboards-"))
    require_program("prometheus", "prometheus")
    model = make_checkpoint(folder / "model", Family.QWEN3_MOE, seed=3)
    config = load_config(
        {
            "model": {"path": str(model)},
            "parallel": {"dp": 2, "ep": 2},
            "cache": {
                "page_size": 16,
                "l1": {"num_pages": 32},
                "l2": {"bytes_per_node": "4MiB", "keep_s": 0},
                "l3": {"backend": "file", "path": str(folder / "l3"), "max_bytes": "4MiB"},
            },
        }
    )
    handle = start_engine(config, own_name("watched"))
    load = Load(handle.name)
    load.start()
    try:
        assert load.is_up.wait(60)
        assert load.url is not None
        ray_url = metrics_url(ray.nodes()[0]["NodeID"])
        with _scraping(handle.name, folder, ray_url, load.url) as watched:
            yield watched
    finally:
        load.stop()
        asyncio.run(handle.shutdown())
        shutil.rmtree(folder)


def _write(folder: Path, url: str, *options: str) -> dict[str, Any]:
    """What `raydix dashboards` writes; returns the configuration of Prometheus."""
    target = url.removeprefix("http://").removesuffix("/metrics")
    arguments = ["dashboards", "--out", str(folder), "--target", target, *options]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    config: dict[str, Any] = yaml.safe_load((folder / "prometheus.yml").read_text())
    return config


@contextmanager
def _scraping(engine: str, folder: Path, ray_url: str, http_url: str) -> Iterator[Watched]:
    folders = {endpoint: folder / endpoint.value for endpoint in ENDPOINTS}
    of_ray = _write(folders[Endpoint.RAY], ray_url)
    of_http = _write(folders[Endpoint.HTTP], http_url, "--http")
    [job], [http_job] = of_ray["scrape_configs"], of_http["scrape_configs"]
    config = {
        "global": {"scrape_interval": _SCRAPE, "evaluation_interval": _SCRAPE},
        "rule_files": [str(path / "raydix-alerts.yml") for path in folders.values()],
        "scrape_configs": [job, http_job | {"job_name": "http"}],
    }
    with running_prometheus(folder, config) as prometheus:
        yield Watched(engine, prometheus, http_url, folders)


def expressions_of(dashboard: dict[str, Any]) -> dict[str, str]:
    """What the panels of a dashboard ask, by panel and legend."""
    return {
        f"{panel['title']}: {target['legendFormat']}": target["expr"]
        .replace("$engine", ".*")
        .replace("$__rate_interval", _RATE_RANGE)
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    }


def without_samples(prometheus: Prometheus, expressions: dict[str, str]) -> list[str]:
    """Which of them give nothing, once all had time to give something."""
    deadline_s = time.monotonic() + _ALL_SAMPLES_S
    missing = list(expressions)
    while missing and time.monotonic() < deadline_s:
        missing = [title for title in missing if not prometheus.query(expressions[title])]
        time.sleep(1.0)
    return missing


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_every_panel_has_samples_of_an_engine_under_load(
    watched: Watched, endpoint: Endpoint
) -> None:
    dashboard = json.loads((watched.folders[endpoint] / DASHBOARD_FILE).read_text())
    expressions = expressions_of(dashboard)

    assert len(expressions) > len(all_metrics())
    assert without_samples(watched.prometheus, expressions) == [], watched.prometheus.troubles()


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_every_alert_has_a_value_and_is_evaluated(watched: Watched, endpoint: Endpoint) -> None:
    values = {
        alert.name: alert.value.replace("[5m]", f"[{_RATE_RANGE}]")
        for alert in make_alerts(endpoint)
    }

    assert without_samples(watched.prometheus, values) == [], watched.prometheus.troubles()
    assert watched.prometheus.rules() == dict.fromkeys(values, "ok")


def test_both_endpoints_tell_the_same(watched: Watched) -> None:
    by_name = "count by (__name__) ({{__name__=~'{}raydix_.*',__name__!~'.*_created'{}}})"
    # Other engines of the cluster, of which the tests have one in common, are on Ray's endpoint.
    of_ray = watched.prometheus.query(by_name.format("ray_", f",engine='{watched.engine}'"))
    of_http = watched.prometheus.query(by_name.format("", ""))

    series = [
        {row["metric"]["__name__"].removeprefix("ray_"): row["value"][1] for row in rows}
        for rows in (of_ray, of_http)
    ]
    of_server = {name for name in series[1] if name.startswith(("raydix_http_", "raydix_routing_"))}
    assert of_server
    assert series[0] == {name: n for name, n in series[1].items() if name not in of_server}


def test_promtool_finds_no_fault(watched: Watched) -> None:
    promtool = require_program("promtool", "prometheus")
    for endpoint, folder in watched.folders.items():
        checks = (["config", str(folder / "prometheus.yml")],)
        for check in checks:
            run = subprocess.run([promtool, "check", *check], capture_output=True, text=True)
            assert run.returncode == 0, (endpoint, run.stderr)

    text = _read(f"{watched.http_url}/metrics")
    run = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert [line for line in run.stderr.splitlines() if "raydix" in line] == []


def test_every_metric_has_a_panel_and_a_line_in_the_document(tmp_path: Path) -> None:
    _write(tmp_path, "localhost:9477")
    dashboard = json.loads((tmp_path / DASHBOARD_FILE).read_text())
    titles = {panel["title"] for panel in dashboard["panels"] if "targets" in panel}
    document = (ROOT / "docs/metrics.md").read_text()

    names = [metric.name for metric in all_metrics()]
    assert [name for name in names if name not in titles] == []
    assert [name for name in names if f"| `{name}` |" not in document] == []
