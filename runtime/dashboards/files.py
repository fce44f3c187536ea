"""The files that monitoring reads: dashboards, alerts, and what Prometheus is to scrape."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from raydix.runtime.dashboards.alerts import make_rules
from raydix.runtime.dashboards.grafana import make_dashboard
from raydix.runtime.dashboards.panels import Endpoint

DASHBOARD_FILE = "raydix-dashboard.json"
_ALERTS_FILE = "raydix-alerts.yml"
_PROMETHEUS_FILE = "prometheus.yml"


def write_files(folder: Path, endpoint: Endpoint, targets: Sequence[str]) -> list[Path]:
    """Write all of them for engines whose metrics are at `targets`; returns their paths."""
    texts = {
        DASHBOARD_FILE: _dashboard_text(endpoint),
        _ALERTS_FILE: yaml.safe_dump(make_rules(endpoint), sort_keys=False, width=10_000),
        _PROMETHEUS_FILE: yaml.safe_dump(_prometheus(targets), sort_keys=False),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text)
    return [folder / name for name in texts]


def write_dashboard(folder: Path) -> Path:
    """Write the dashboard alone, into the folder from which a Ray cluster's Grafana takes them."""
    path = folder / DASHBOARD_FILE
    path.write_text(_dashboard_text(Endpoint.RAY))
    return path


def _dashboard_text(endpoint: Endpoint) -> str:
    return json.dumps(make_dashboard(endpoint), indent=2) + "\n"


def _prometheus(targets: Sequence[str]) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": "10s", "evaluation_interval": "10s"},
        "rule_files": [_ALERTS_FILE],
        "scrape_configs": [{"job_name": "raydix", "static_configs": [{"targets": [*targets]}]}],
    }
