"""Every metric of Raydix, by who tells it: what the document and the dashboards are made from."""

from dataclasses import dataclass

from raydix.runtime.actors.gpu_metrics import GPU_GROUPS
from raydix.runtime.actors.host_metrics import HOST_GROUPS
from raydix.runtime.actors.scheduler_metrics import SCHEDULER_GROUPS
from raydix.runtime.actors.storage_metrics import STORAGE_GROUPS
from raydix.runtime.metrics import Metric, MetricGroup, metrics_of
from raydix.runtime.server.http_definitions import HTTP_GROUPS


@dataclass(frozen=True, slots=True)
class Teller:
    """Who tells some metrics."""

    title: str
    groups: tuple[MetricGroup, ...]
    is_engine: bool = True
    """Whether the metrics are the engine's, and on Ray's endpoint; others are the HTTP server's
    own.
    """


TELLERS = (
    Teller("The Scheduler", SCHEDULER_GROUPS),
    Teller("The GPU actors", GPU_GROUPS),
    Teller("HostMemory", HOST_GROUPS),
    Teller("The storage actor", STORAGE_GROUPS),
    Teller("The HTTP server", HTTP_GROUPS, is_engine=False),
)


def all_metrics() -> tuple[Metric, ...]:
    """All of them, in the order of the document."""
    return tuple(metric for teller in TELLERS for metric in metrics_of(teller.groups))
