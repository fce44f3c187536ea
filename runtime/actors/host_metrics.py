"""The metrics of HostMemory, from the figures of `HostMemoryActor.stats`."""

from collections.abc import Iterable

from raydix.runtime.cache.host.writes import DropReason
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.metrics import (
    TRANSFER_BOUNDS_S,
    Derived,
    Family,
    Figure,
    Figures,
    LabelValues,
    MetricGroup,
    Unit,
    counter,
    gauge,
    histogram,
    members,
    metrics_of,
    number,
)

PAGE_TOKENS = "page_tokens"
"""The name of a figure that the actor adds: the tokens of a host page."""
_BREAKER_STATES = {"closed": 0.0, "half_open": 1.0, "open": 2.0, "none": 3.0}
_ARRIVED = ObjectStatus.OK.label
"""The status of a page that L3 has brought."""


def _read_tokens(figures: Figures) -> dict[str, float]:
    """Tokens of the pages whose reads have ended, by status."""
    page_tokens = number(figures[PAGE_TOKENS])
    reads = members(figures, "l3_reads_")
    return {status: num_pages * page_tokens for status, num_pages in reads.items()}


def _submitted_tokens(figures: Figures) -> Iterable[tuple[LabelValues, float]]:
    yield (), sum(_read_tokens(figures).values())


def _completed_tokens(figures: Figures) -> Iterable[tuple[LabelValues, float]]:
    yield (), _read_tokens(figures).get(_ARRIVED, 0.0)


def _unfulfilled_tokens(figures: Figures) -> Iterable[tuple[LabelValues, float]]:
    tokens = _read_tokens(figures)
    for status in ObjectStatus:
        if status is not ObjectStatus.OK:
            yield (status.label,), tokens.get(status.label, 0.0)


def _breaker_state(figures: Figures) -> Iterable[tuple[LabelValues, float]]:
    yield (), _BREAKER_STATES[str(figures["l3_breaker"])]


def _l2_pages(figures: Figures) -> Iterable[tuple[LabelValues, float]]:
    for state in ("free", "filling", "ready", "quarantined"):
        for group, pages in members(figures, f"pages_{state}_").items():
            yield (group, state), pages


_L2 = (
    gauge(
        "l2_pages",
        Unit.PAGES,
        "Host pages of each KV group by state.",
        Derived(_l2_pages),
        labels=("group", "state"),
    ),
    gauge("l2_used_bytes", Unit.BYTES, "Bytes of READY host pages.", Figure("ready_bytes")),
    counter("l2_evicted_pages_total", Unit.PAGES, "Pages that left L2.", Figure("pages_dropped")),
    gauge("kv_leases_active", Unit.COUNT, "Leases on host pages.", Figure("leases")),
    counter(
        "l2_stale_events_total",
        Unit.COUNT,
        "What earlier links brought to HostMemory, which was dropped.",
        Figure("stale_events"),
    ),
)

_PREFETCH = (
    histogram(
        "lookup_seconds",
        TRANSFER_BOUNDS_S,
        "From a request's question about L2 and L3 until every page's place is known and all are"
        " there.",
        Figure("lookup_times"),
    ),
    counter(
        "prefetch_submitted_tokens_total",
        Unit.TOKENS,
        "Tokens of the pages whose reads from L3 have ended.",
        Derived(_submitted_tokens),
    ),
    counter(
        "prefetch_completed_tokens_total",
        Unit.TOKENS,
        "Tokens that arrived from L3.",
        Derived(_completed_tokens),
    ),
    counter(
        "prefetch_unfulfilled_tokens_total",
        Unit.TOKENS,
        "Tokens of the pages that L3 did not bring.",
        Derived(_unfulfilled_tokens),
        labels=("reason",),
    ),
)

_L3 = (
    gauge(
        "l3_breaker_state",
        Unit.STATE,
        "0 closed, 1 half open, 2 open, 3 no backend is attached.",
        Derived(_breaker_state),
    ),
    counter(
        "l3_breaker_trips_total",
        Unit.COUNT,
        "How often a kind of operation was given up.",
        Figure("l3_breaker_trips"),
    ),
    counter(
        "l3_overdue_batches_total",
        Unit.COUNT,
        "Batches that were not answered in time.",
        Figure("l3_overdue_batches"),
    ),
    counter(
        "l3_known_missing_pages_total",
        Unit.PAGES,
        "Pages that L3 was not asked about: it lacked them a moment ago.",
        Figure("l3_pages_known_missing"),
    ),
    gauge(
        "l3_queued_pages",
        Unit.PAGES,
        "Pages that wait to be written to L3 or are being written.",
        Figure("l3_writes_pending"),
    ),
    gauge(
        "l3_put_off_pages",
        Unit.PAGES,
        "Pages of L2 that L3 did not take and is offered again after a while.",
        Figure("l3_writes_put_off"),
    ),
    counter(
        "l3_retried_pages_total",
        Unit.PAGES,
        "Failed writes that were tried again.",
        Figure("l3_writes_retried"),
    ),
    counter(
        "l3_dropped_pages_total",
        Unit.PAGES,
        "Pages that were not written to L3; those that are full or failed, not yet.",
        Family("l3_writes_dropped_", tuple(reason.value for reason in DropReason)),
        labels=("reason",),
    ),
)

_PEERS = (
    gauge("peers", Unit.COUNT, "Other nodes whose L2 can be pulled from.", Figure("peers")),
    gauge(
        "peer_readers", Unit.COUNT, "Other nodes that pull from this L2.", Figure("peer_readers")
    ),
    gauge(
        "peer_sending_pages",
        Unit.PAGES,
        "Pages that are being sent to other nodes.",
        Figure("pages_sending"),
    ),
    counter(
        "peers_lost_total", Unit.COUNT, "Links to other nodes that ended.", Figure("peers_lost")
    ),
    counter(
        "peer_pages_total",
        Unit.PAGES,
        "Pages that were pulled from other nodes, by what became of them.",
        Family("peer_reads_", tuple(status.label for status in ObjectStatus)),
        labels=("status",),
    ),
)

HOST_GROUPS = (
    MetricGroup("L2", _L2),
    MetricGroup("L2 of other nodes", _PEERS),
    MetricGroup("Reads ahead", _PREFETCH),
    MetricGroup("L3 as HostMemory sees it", _L3),
)
HOST_METRICS = metrics_of(HOST_GROUPS)
