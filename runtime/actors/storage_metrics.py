"""The metrics of a storage actor, from the figures of `StorageActor.stats`.

The backend's name is the first label of each.
"""

from collections.abc import Iterable
from typing import assert_never

from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.metrics import (
    TRANSFER_BOUNDS_S,
    Derived,
    Figure,
    Figures,
    LabelValues,
    MetricGroup,
    Unit,
    counter,
    gauge,
    histogram,
    metrics_of,
    number,
)
from raydix.runtime.storage.worker.order_counts import Operation

_BACKEND = ("backend",)
_FOR_ALL = (
    ObjectStatus.OK,
    ObjectStatus.IO_ERROR,
    ObjectStatus.TIMED_OUT,
    ObjectStatus.CANCELLED,
)
"""The statuses that an object may have after any operation."""
_NO_ERRORS = (ObjectStatus.OK, ObjectStatus.MISSING, ObjectStatus.CANCELLED)


def _batch_seconds(figures: Figures) -> Iterable[tuple[LabelValues, object]]:
    for operation in Operation:
        yield (operation.value,), figures.get(f"{operation}_times")


def _objects(figures: Figures) -> Iterable[tuple[LabelValues, float]]:
    for operation, status, num_objects in _results(figures):
        yield (operation.value, status.label), num_objects


def _errors(figures: Figures) -> Iterable[tuple[LabelValues, float]]:
    for operation, status, num_objects in _results(figures):
        if status not in _NO_ERRORS:
            yield (operation.value, status.label), num_objects


def _verify_failures(figures: Figures) -> Iterable[tuple[LabelValues, float]]:
    # Only reads verify, so the operation is no label here.
    for operation, status, num_objects in _results(figures):
        if operation is Operation.READ and status.is_bad_object:
            yield (status.label,), num_objects


def _results(figures: Figures) -> Iterable[tuple[Operation, ObjectStatus, float]]:
    """How many objects had each result: of those that an operation can have, or that were seen."""
    for operation in Operation:
        for status in ObjectStatus:
            num_objects = number(figures.get(f"{operation}_objects_{status.label}", 0))
            if num_objects or status in _results_of(operation):
                yield operation, status, num_objects


def _results_of(operation: Operation) -> tuple[ObjectStatus, ...]:
    match operation:
        case Operation.EXISTS:
            return _FOR_ALL + (ObjectStatus.MISSING,)
        case Operation.READ:
            bad = tuple(status for status in ObjectStatus if status.is_bad_object)
            return _FOR_ALL + (ObjectStatus.MISSING, *bad)
        case Operation.WRITE:
            return _FOR_ALL + (ObjectStatus.FULL,)
        case Operation.CLEAR:
            return _FOR_ALL
        case _:
            assert_never(operation)


_OPERATIONS = (
    histogram(
        "l3_batch_seconds",
        TRANSFER_BOUNDS_S,
        "Time that a batch took once a thread had taken it.",
        Derived(_batch_seconds),
        labels=("backend", "op"),
    ),
    counter(
        "l3_objects_total",
        Unit.COUNT,
        "Objects of batches by result.",
        Derived(_objects),
        labels=("backend", "op", "result"),
    ),
    counter(
        "l3_errors_total",
        Unit.COUNT,
        "Those of them that failed or were bad.",
        Derived(_errors),
        labels=("backend", "op", "kind"),
    ),
    counter(
        "kv_verify_failures_total",
        Unit.COUNT,
        "Those whose bytes did not pass verification.",
        Derived(_verify_failures),
        labels=("backend", "kind"),
    ),
    counter(
        "l3_read_bytes_total",
        Unit.BYTES,
        "Bytes read from L3.",
        Figure("read_bytes"),
        labels=_BACKEND,
    ),
    counter(
        "l3_write_bytes_total",
        Unit.BYTES,
        "Bytes written to L3.",
        Figure("write_bytes"),
        labels=_BACKEND,
    ),
    gauge(
        "l3_active_batches",
        Unit.COUNT,
        "Batches that wait for a thread or are carried out.",
        Figure("active_batches"),
        labels=_BACKEND,
    ),
)

_CONTENTS = (
    gauge(
        "l3_stored_objects",
        Unit.COUNT,
        "Objects of a backend that Raydix bounds.",
        Figure("objects"),
        labels=_BACKEND,
    ),
    gauge(
        "l3_used_bytes",
        Unit.BYTES,
        "Bytes of a backend that Raydix bounds.",
        Figure("bytes"),
        labels=_BACKEND,
    ),
    gauge(
        "l3_max_bytes",
        Unit.BYTES,
        "Its bound; 0 without one.",
        Figure("max_bytes"),
        labels=_BACKEND,
    ),
    counter(
        "l3_evicted_objects_total",
        Unit.COUNT,
        "Objects that gave way to others there.",
        Figure("objects_evicted"),
        labels=_BACKEND,
    ),
    counter(
        "l3_failed_evictions_total",
        Unit.COUNT,
        "Objects there that could not be deleted.",
        Figure("evictions_failed"),
        labels=_BACKEND,
    ),
)

STORAGE_GROUPS = (
    MetricGroup("L3 operations", _OPERATIONS),
    MetricGroup("L3 contents", _CONTENTS),
)
STORAGE_METRICS = metrics_of(STORAGE_GROUPS)
