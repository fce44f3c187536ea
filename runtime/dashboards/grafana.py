"""Grafana dashboards: the metrics of each teller, group by group, as Grafana imports them."""

from typing import Any

from raydix.runtime.dashboards.catalogue import TELLERS
from raydix.runtime.dashboards.panels import Endpoint, Names, Panel, overview, panel_of
from raydix.runtime.dashboards.service_panels import service_panels

_SCHEMA_VERSION = 39
_COLUMNS = 24
_WIDTH, _HEIGHT = 8, 8
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def make_dashboard(endpoint: Endpoint) -> dict[str, Any]:
    """One dashboard: overviews, then a row for each group with a panel for each metric."""
    names = Names(endpoint, engine="$engine")
    rows = [("Overview", overview(names)), ("Several engines", service_panels(names))]
    rows += [
        (group.title, tuple(panel_of(metric, names) for metric in group.metrics))
        for teller in TELLERS
        for group in teller.groups
    ]
    return {
        "uid": f"raydix-{endpoint}",
        "title": "Raydix",
        "tags": ["raydix"],
        "schemaVersion": _SCHEMA_VERSION,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": _variables(names)},
        "panels": _place(rows),
    }


def _variables(names: Names) -> list[dict[str, Any]]:
    """The data source and the engines, to choose from."""
    every = Names(names.endpoint, engine=None)
    query = f"label_values({every.select('generation_tokens_total')}, engine)"
    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus"},
        {
            "name": "engine",
            "type": "query",
            "datasource": _DATASOURCE,
            "definition": query,
            "query": {"query": query, "refId": "engine"},
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"]},
        },
    ]


def _place(rows: list[tuple[str, tuple[Panel, ...]]]) -> list[dict[str, Any]]:
    """Panels beside each other, three in a line, under the title of their row."""
    placed: list[dict[str, Any]] = []
    y = 0
    for title, panels in rows:
        position = {"x": 0, "y": y, "w": _COLUMNS, "h": 1}
        placed.append({"id": len(placed) + 1, "type": "row", "title": title, "gridPos": position})
        y += 1
        for index, panel in enumerate(panels):
            line, column = divmod(index, _COLUMNS // _WIDTH)
            x, top = column * _WIDTH, y + line * _HEIGHT
            position = {"x": x, "y": top, "w": _WIDTH, "h": _HEIGHT}
            placed.append({"id": len(placed) + 1, "gridPos": position, **_time_series(panel)})
        y += -(-len(panels) // (_COLUMNS // _WIDTH)) * _HEIGHT
    return placed


def _time_series(panel: Panel) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": _DATASOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _DATASOURCE,
                "expr": target.expression,
                "legendFormat": target.legend,
            }
            for index, target in enumerate(panel.targets)
        ],
    }
