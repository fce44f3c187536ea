"""Prometheus alerts: a value that every healthy engine has, and the bound that it should keep."""

from dataclasses import dataclass
from typing import Any

from raydix.runtime.dashboards.panels import Endpoint, Names
from raydix.runtime.dashboards.service_panels import FAILED_PULLS

_OVER = "5m"
_SERVER_FAILURES = "engine_dead|shutting_down|overloaded|deadline_exceeded"
"""Failures that are not the request's own fault."""
_LOST_WRITES = "evicted|full|failed"
"""Writes that should have been done; others were not wanted any more."""


@dataclass(frozen=True, slots=True)
class Alert:
    """Fires while `value` is beyond its bound for `lasts`."""

    name: str
    value: str
    bound: str
    """The end of the rule in PromQL: a comparison and a number."""
    lasts: str
    severity: str
    summary: str
    subject: str = "engine"
    """The label that names what it is about."""

    @property
    def expression(self) -> str:
        """What Prometheus evaluates."""
        return f"({self.value}) {self.bound}"


def make_alerts(endpoint: Endpoint) -> tuple[Alert, ...]:
    """All alerts. Their bounds are a start, to be changed to what an installation promises."""
    names = Names(endpoint, engine=None)
    return (*_service(names), *_caches(names), *_progress(names), *_several(names))


def _service(names: Names) -> tuple[Alert, ...]:
    failed = names.rate("request_failure_total", "engine", over=_OVER, kind=_SERVER_FAILURES)
    ended = (
        f"{names.rate('request_success_total', 'engine', over=_OVER)} + "
        f"{names.rate('request_failure_total', 'engine', over=_OVER)}"
    )
    return (
        Alert(
            "RaydixSlowFirstTokens",
            names.quantile(0.99, "time_to_first_token_seconds", "engine", over=_OVER),
            "> 10",
            "5m",
            "warning",
            "One in a hundred requests waits longer than 10 s for its first token.",
        ),
        Alert(
            "RaydixSlowTokens",
            names.quantile(0.99, "time_per_output_token_seconds", "engine", over=_OVER),
            "> 0.2",
            "5m",
            "warning",
            "One in a hundred requests has less than five tokens per second.",
        ),
        Alert(
            "RaydixQueueing",
            names.quantile(0.9, "request_queue_time_seconds", "engine", over=_OVER),
            "> 5",
            "5m",
            "warning",
            "One in ten requests waits longer than 5 s for its admission: there is more load than "
            "the engine can take.",
        ),
        Alert(
            "RaydixRequestsFail",
            f"{failed} / ({ended})",
            "> 0.05",
            "5m",
            "critical",
            "One in twenty requests fails by the engine's fault, or is refused.",
        ),
    )


def _caches(names: Names) -> tuple[Alert, ...]:
    errors = names.rate("l3_errors_total", "engine", "backend", over=_OVER)
    objects = names.rate("l3_objects_total", "engine", "backend", over=_OVER)
    bad = names.select("kv_verify_failures_total")
    return (
        Alert(
            "RaydixL1Full",
            f"max by (engine, rank) ({names.select('kv_cache_usage_perc')})",
            "> 0.95",
            "10m",
            "warning",
            "Running requests hold nearly all of L1: new ones wait, and some are retracted.",
        ),
        Alert(
            "RaydixL3Broken",
            f"max by (engine) ({names.select('l3_breaker_state')})",
            "== 2",
            "1m",
            "critical",
            "L3 is not used, because it fails: `raydix cache stats` says how.",
        ),
        Alert(
            "RaydixL3Errors",
            f"{errors} / {objects}",
            "> 0.01",
            "5m",
            "warning",
            "One in a hundred objects of L3 cannot be read or written.",
        ),
        Alert(
            "RaydixBadPages",
            f"sum by (engine, backend, kind) (increase({bad}[15m]))",
            "> 0",
            "0m",
            "warning",
            "Objects of L3 were not what was written. They were not used.",
        ),
        Alert(
            "RaydixWritesLost",
            names.rate(
                "l3_dropped_pages_total", "engine", "reason", over=_OVER, reason=_LOST_WRITES
            ),
            "> 0",
            "10m",
            "warning",
            "L3 does not take all pages that are to be written to it.",
        ),
    )


def _progress(names: Names) -> tuple[Alert, ...]:
    running = f"sum by (engine) ({names.select('num_requests_running')})"
    steps = names.rate("steps_total", "engine", over=_OVER)
    told = f"group by (engine) ({names.select('num_requests_running')})"
    was_told = f"group by (engine) (present_over_time({names.select('num_requests_running')}[1h]))"
    return (
        Alert(
            "RaydixStandsStill",
            f"{running} * ({steps} == bool 0)",
            "> 0",
            "2m",
            "critical",
            "Requests run, but there are no steps.",
        ),
        Alert(
            "RaydixSilent",
            f"{was_told} - ({told} or 0 * {was_told})",
            "> 0",
            "2m",
            "critical",
            "An engine that was there within the last hour tells nothing more.",
        ),
        Alert(
            "RaydixExpertsStalled",
            f"max by (engine) ({names.select('expert_migration_stalled')})",
            "> 0",
            "5m",
            "warning",
            "Experts should move to even out the ranks, and do not.",
        ),
    )


def _several(names: Names) -> tuple[Alert, ...]:
    """What goes wrong among several engines: nodes, routing, pulls."""
    # The engines of a service are called NAME/1, NAME/2 and so on; an engine alone is as even as
    # can be.
    wait = names.select("prompt_wait_seconds")
    by_service = f'label_replace({wait}, "service", "$1", "engine", "(.*?)(/[0-9]+)?")'
    pulls = names.rate("peer_pages_total", "engine", over=_OVER)
    failed = names.rate("peer_pages_total", "engine", over=_OVER, status=FAILED_PULLS)
    return (
        Alert(
            "RaydixUnevenNodes",
            f"max by (service) ({by_service}) - min by (service) ({by_service})",
            "> 10",
            "5m",
            "warning",
            "A request would wait 10 s longer at one engine of the service than at another.",
            subject="service",
        ),
        Alert(
            "RaydixRoutingErrs",
            names.quantile(0.9, "routing_late_seconds", "replica", over=_OVER),
            "> 10",
            "10m",
            "warning",
            "One in ten of the first tokens that are late is so by more than 10 s of what routing "
            "predicted for this replica's requests.",
            subject="replica",
        ),
        Alert(
            "RaydixEngineUnknown",
            _unknown_engines(names),
            "> 0",
            "5m",
            "critical",
            "The engine holds pages, and replica {{ $labels.replica }}, which knows those of "
            "others, knows none of them: its link is lost, and nothing is sent there.",
        ),
        Alert(
            "RaydixPullsFail",
            f"{failed} / {pulls}",
            "> 0.05",
            "5m",
            "warning",
            "One in twenty pages that are pulled from other nodes does not arrive.",
        ),
        Alert(
            "RaydixPeersLost",
            f"sum by (engine) (increase({names.select('peers_lost_total')}[15m]))",
            "> 3",
            "0m",
            "warning",
            "Links to other nodes' L2 end again and again.",
        ),
    )


def _unknown_engines(names: Names) -> str:
    """1 for each engine with cached pages of which a replica knows none, but some of others."""
    known = names.select("routing_known_pages")
    cached = names.select("l1_pages", state="locked|evictable")
    return (
        f"max by (engine, replica) ({known} == bool 0) "
        f"* on (replica) group_left () max by (replica) ({known} > bool 0) "
        f"* on (engine) group_left () (sum by (engine) ({cached}) > bool 0)"
    )


def make_rules(endpoint: Endpoint) -> dict[str, Any]:
    """The alerts as a Prometheus rule file."""
    rules = [
        {
            "alert": alert.name,
            "expr": alert.expression,
            "for": alert.lasts,
            "labels": {"severity": alert.severity},
            "annotations": {"summary": f"{{{{ $labels.{alert.subject} }}}}: {alert.summary}"},
        }
        for alert in make_alerts(endpoint)
    ]
    return {"groups": [{"name": "raydix", "rules": rules}]}
