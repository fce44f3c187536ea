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

HTTP_GROUPS = (MetricGroup("HTTP", (REQUESTS, IN_PROGRESS, FIRST_BYTE, DURATION)),)
