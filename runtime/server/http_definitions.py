"""The metrics of the HTTP server itself; what is counted needs no web framework to be listed."""

from raydix.runtime.metrics import (
    REQUEST_BOUNDS_S,
    MetricGroup,
    Unit,
    counter,
    gauge,
    histogram,
)

_ROUTE = ("route", "replica")

REQUESTS = counter(
    "http_requests_total",
    Unit.COUNT,
    "Requests that were answered; status 499: the client went away first.",
    labels=("route", "status", "replica"),
)
IN_PROGRESS = gauge(
    "http_requests_in_progress",
    Unit.COUNT,
    "Requests whose answer is not complete.",
    labels=("replica",),
)
FIRST_BYTE = histogram(
    "http_time_to_first_byte_seconds",
    REQUEST_BOUNDS_S,
    "From a request's first byte to its answer's: in a stream, to the first token.",
    labels=_ROUTE,
)
DURATION = histogram(
    "http_request_seconds",
    REQUEST_BOUNDS_S,
    "From a request's first byte to its answer's last.",
    labels=_ROUTE,
)

ROUTED = counter(
    "routing_requests_total",
    Unit.COUNT,
    "Requests that went to each of several engines, by what it has and has to do.",
    labels=("engine", "replica"),
)
ROUTED_TOKENS = counter(
    "routing_expected_tokens_total",
    Unit.TOKENS,
    "Tokens of their prompts that were expected not to be computed, by the tier that has them.",
    labels=("engine", "tier", "replica"),
)
ROUTED_SPLIT = counter(
    "routing_split_total",
    Unit.COUNT,
    "Requests that another engine was asked to begin, which go on at this one.",
    labels=("engine", "replica"),
)
ROUTED_KEYS = gauge(
    "routing_known_pages",
    Unit.PAGES,
    "Pages of each engine that are known, of L1 and of L2: none while it is away.",
    labels=("engine", "replica"),
)
ROUTED_LATE = histogram(
    "routing_late_seconds",
    REQUEST_BOUNDS_S,
    "By how much first tokens came later than predicted, of those that did.",
    labels=("replica",),
)
ROUTED_EARLY = histogram(
    "routing_early_seconds",
    REQUEST_BOUNDS_S,
    "By how much first tokens came sooner than predicted, of those that did.",
    labels=("replica",),
)
ROUTED_HAND_OVER = histogram(
    "routing_hand_over_seconds",
    REQUEST_BOUNDS_S,
    "From the first token of a request that goes on at another engine until the second one.",
    labels=("replica",),
)

HTTP_GROUPS = (
    MetricGroup("HTTP", (REQUESTS, IN_PROGRESS, FIRST_BYTE, DURATION)),
    MetricGroup(
        "Routing",
        (
            ROUTED,
            ROUTED_TOKENS,
            ROUTED_SPLIT,
            ROUTED_KEYS,
            ROUTED_LATE,
            ROUTED_EARLY,
            ROUTED_HAND_OVER,
        ),
    ),
)
