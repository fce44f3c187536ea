"""What is looked at of several engines together: their nodes, where requests go, and pulls."""

from collections.abc import Iterator

from raydix.runtime.dashboards.panels import RATE_RANGE, Endpoint, Names, Panel, Target
from raydix.runtime.messages.host import ObjectStatus

FAILED_PULLS = "|".join(
    status.label
    for status in ObjectStatus
    # What the other node has dropped meanwhile, or nobody waits for any longer, is no failure.
    if status not in (ObjectStatus.OK, ObjectStatus.MISSING, ObjectStatus.CANCELLED)
)
"""The results of pulls that should have brought a page, as a regular expression."""
_RAYS_NODE = "NodeAddress"
"""The label by which Ray's agents name the node of whatever tells a metric."""


def service_panels(names: Names) -> tuple[Panel, ...]:
    """Nodes, routing and pulls; engines are named with their nodes where the endpoint tells."""
    return (*_nodes(names), *_routing(names), *_pulls(names))


def _nodes(names: Names) -> Iterator[Panel]:
    # A server's own endpoint tells of one engine, and not where that runs.
    has_node = names.endpoint is Endpoint.RAY
    by = f"engine, {_RAYS_NODE}" if has_node else "engine"
    legend = f"{{{{engine}}}} on {{{{{_RAYS_NODE}}}}}" if has_node else "{{engine}}"
    running = names.select("num_requests_running")
    if has_node:
        engines = f"count by ({_RAYS_NODE}) (group by ({by}) ({running}))"
        yield Panel(
            "Engines by node",
            "How many engines tell their metrics on each node.",
            "short",
            (Target(engines, f"{{{{{_RAYS_NODE}}}}}"),),
        )
    yield Panel(
        "Wait by engine",
        "Predicted time that a new request waits there for the prompts before it.",
        "s",
        (Target(f"max by ({by}) ({names.select('prompt_wait_seconds')})", legend),),
    )


def _routing(names: Names) -> Iterator[Panel]:
    yield Panel(
        "Requests by engine",
        "Requests per second that ingresses send to each engine.",
        "reqps",
        (Target(names.rate("routing_requests_total", "engine"), "{{engine}}"),),
    )
    # A histogram without a value has no quantile.
    late, early = (
        tuple(
            Target(names.quantile(quantile, f"routing_{way}_seconds"), f"p{100 * quantile:g} {way}")
            for quantile in (0.5, 0.9)
        )
        for way in ("late", "early")
    )
    yield Panel(
        "Error of routing",
        "By how much first tokens came later than predicted, and sooner.",
        "s",
        (*late, *early),
    )


def _pulls(names: Names) -> Iterator[Panel]:
    pulled = names.rate("peer_pages_total", "engine", status="ok")
    failed = names.rate("peer_pages_total", "engine", status=FAILED_PULLS)
    peer = names.rate("prompt_tokens_cached_by_source_total", "engine", source="peer")
    queries = names.rate("prefix_cache_queries_total", "engine")
    yield Panel(
        "Pulled pages",
        "Pages per second that came from other nodes' L2, and those that failed on the way.",
        "short",
        (Target(pulled, "{{engine}}"), Target(failed, "failed {{engine}}")),
    )
    yield Panel(
        "Part of prompt tokens from other nodes",
        "What was pulled of the prompts, instead of being computed.",
        "percentunit",
        (Target(f"{peer} / {queries}", "{{engine}}"),),
    )
    lost = f"sum by (engine) (increase({names.select('peers_lost_total')}[{RATE_RANGE}]))"
    yield Panel(
        "Other nodes in reach",
        "How many nodes can be pulled from, and links to them that ended.",
        "short",
        (
            Target(f"max by (engine) ({names.select('peers')})", "{{engine}}"),
            Target(lost, "lost {{engine}}"),
        ),
    )
