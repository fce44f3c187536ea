"""Each alert fires for what it is about, and for nothing of a healthy engine."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from raydix.runtime.dashboards.alerts import make_alerts
from raydix.runtime.dashboards.files import write_files
from raydix.runtime.dashboards.panels import Endpoint, Names
from tests.prometheus_server import require_program

_ALERTS = {alert.name: alert for alert in make_alerts(Endpoint.RAY)}
_MINUTES = 30
_GROWS, _STAYS = f"0+60x{_MINUTES}", f"5+0x{_MINUTES}"
_ZERO = f"0+0x{_MINUTES}"


def series(name: str, values: str, **labels: str) -> dict[str, str]:
    """One series of an engine, a value each minute."""
    tags = ",".join(f'{label}="{value}"' for label, value in {"engine": "e", **labels}.items())
    return {"series": f"ray_raydix_{name}{{{tags}}}", "values": values}


def of_server(name: str, values: str, **labels: str) -> dict[str, str]:
    """One series that an HTTP server tells itself."""
    tags = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return {"series": f"raydix_{name}{{{tags}}}", "values": values}


def slow(name: str, bound: str) -> list[dict[str, str]]:
    """All values of a histogram are above this bound and below infinity."""
    return [
        series(f"{name}_bucket", values, le=le)
        for le, values in ((bound, _ZERO), ("500.0", _GROWS), ("+Inf", _GROWS))
    ]


_TROUBLES = {
    "RaydixSlowFirstTokens": slow("time_to_first_token_seconds", "20.0"),
    "RaydixSlowTokens": slow("time_per_output_token_seconds", "0.5"),
    "RaydixQueueing": slow("request_queue_time_seconds", "10.0"),
    "RaydixRequestsFail": [
        series("request_success_total", _GROWS, finished_reason="stop"),
        series("request_failure_total", _GROWS, kind="overloaded"),
    ],
    "RaydixL1Full": [series("kv_cache_usage_perc", f"0.97+0x{_MINUTES}", rank="1")],
    "RaydixL3Broken": [series("l3_breaker_state", f"2+0x{_MINUTES}")],
    "RaydixL3Errors": [
        series("l3_errors_total", _GROWS, backend="file", op="read", kind="io_error"),
        series("l3_objects_total", _GROWS, backend="file", op="read", result="io_error"),
    ],
    "RaydixBadPages": [
        series("kv_verify_failures_total", _GROWS, backend="file", kind="bad_checksum")
    ],
    "RaydixWritesLost": [series("l3_dropped_pages_total", _GROWS, reason="evicted")],
    "RaydixStandsStill": [
        series("num_requests_running", _STAYS),
        series("steps_total", _STAYS, rank="0"),
    ],
    "RaydixSilent": [series("num_requests_running", "1 1 1 1 1 stale" + " _" * _MINUTES)],
    "RaydixExpertsStalled": [series("expert_migration_stalled", f"1+0x{_MINUTES}")],
    "RaydixUnevenNodes": [
        series("prompt_wait_seconds", f"12+0x{_MINUTES}", engine="prod/1"),
        series("prompt_wait_seconds", f"1+0x{_MINUTES}", engine="prod/2"),
    ],
    "RaydixRoutingErrs": [
        of_server("routing_late_seconds_bucket", values, replica="0", le=le)
        for le, values in (("20.0", _ZERO), ("500.0", _GROWS), ("+Inf", _GROWS))
    ],
    "RaydixEngineUnknown": [
        of_server("routing_known_pages", _ZERO, engine="prod/1", replica="0"),
        of_server("routing_known_pages", _STAYS, engine="prod/2", replica="0"),
        *(
            series("l1_pages", _STAYS, engine=name, rank="0", group="0", state="evictable")
            for name in ("prod/1", "prod/2")
        ),
    ],
    "RaydixPullsFail": [
        series("peer_pages_total", _GROWS, status="ok"),
        series("peer_pages_total", _GROWS, status="timed_out"),
    ],
    "RaydixPeersLost": [series("peers_lost_total", _GROWS)],
}
_HEALTH = [
    series("request_success_total", _GROWS, finished_reason="stop"),
    series("request_failure_total", _ZERO, kind="overloaded"),
    series("request_failure_total", _GROWS, kind="bad_request"),
    series("kv_cache_usage_perc", f"0.5+0x{_MINUTES}", rank="0"),
    series("l3_breaker_state", _ZERO),
    series("l3_errors_total", _ZERO, backend="file", op="read", kind="io_error"),
    series("l3_objects_total", _GROWS, backend="file", op="read", result="ok"),
    series("l3_dropped_pages_total", _ZERO, reason="full"),
    series("l3_dropped_pages_total", _GROWS, reason="flush"),
    series("kv_verify_failures_total", _ZERO, backend="file", kind="bad_checksum"),
    series("num_requests_running", _STAYS),
    series("steps_total", _GROWS, rank="0"),
    series("expert_migration_stalled", _ZERO),
    # Engines of other services, and one alone, are no part of this one.
    series("prompt_wait_seconds", f"30+0x{_MINUTES}", engine="prod/1"),
    series("prompt_wait_seconds", f"21+0x{_MINUTES}", engine="prod/2"),
    series("prompt_wait_seconds", _ZERO, engine="alone"),
    of_server("routing_late_seconds_bucket", _GROWS, replica="0", le="0.5"),
    of_server("routing_late_seconds_bucket", _GROWS, replica="0", le="+Inf"),
    # One that has ended is known no more, one without a page has none to be known, and a server of
    # one engine does not follow it.
    of_server("routing_known_pages", _STAYS, engine="prod/1", replica="0"),
    of_server("routing_known_pages", _ZERO, engine="prod/2", replica="0"),
    of_server("routing_known_pages", _ZERO, engine="prod/3", replica="0"),
    of_server("routing_known_pages", _ZERO, engine="alone", replica="1"),
    series("l1_pages", _ZERO, engine="prod/3", rank="0", group="0", state="evictable"),
    *(
        series("l1_pages", _STAYS, engine=name, rank="0", group="0", state="evictable")
        for name in ("prod/1", "alone")
    ),
    series("peer_pages_total", _GROWS, status="ok"),
    series("peer_pages_total", _GROWS, status="missing"),
    series("peer_pages_total", _ZERO, status="timed_out"),
    series("peers_lost_total", f"1+0x{_MINUTES}"),
]


def firing(folder: Path, given: list[dict[str, str]], expected: dict[str, int]) -> None:
    """Let promtool evaluate the rules: so many alerts of these names fire at the end."""
    promtool = require_program("promtool", "prometheus")
    write_files(folder, Endpoint.RAY, ["localhost:1"])
    checks: list[dict[str, Any]] = [
        {
            "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)',
            "eval_time": f"{_MINUTES}m",
            "exp_samples": [{"labels": "{}", "value": number}],
        }
        for name, number in expected.items()
    ]
    test = {"interval": "1m", "input_series": given, "promql_expr_test": checks}
    file = folder / "test.yml"
    file.write_text(yaml.safe_dump({"rule_files": ["raydix-alerts.yml"], "tests": [test]}))
    run = subprocess.run(
        [promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("name", _ALERTS)
def test_an_alert_fires_for_its_trouble(tmp_path: Path, name: str) -> None:
    firing(tmp_path, _TROUBLES[name], {name: 1})


def test_no_alert_fires_for_a_healthy_engine(tmp_path: Path) -> None:
    firing(tmp_path, _HEALTH, dict.fromkeys(_ALERTS, 0))


def test_expressions_name_metrics_and_labels_that_exist() -> None:
    names = Names(Endpoint.HTTP, engine=None)

    assert names.select("l1_pages", rank="0") == 'raydix_l1_pages{rank=~"0"}'
    with pytest.raises(KeyError):
        names.select("no_such_metric")
    with pytest.raises(AssertionError, match="l1_pages has no labels"):
        names.select("l1_pages", backend="file")
