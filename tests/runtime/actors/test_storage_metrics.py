from raydix.runtime.actors.storage_metrics import STORAGE_METRICS
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.metrics import LabelValues
from raydix.runtime.storage.worker.order_counts import Operation, OrderCounts
from tests.runtime.actors.sample_values import values_of

BAD = tuple(status for status in ObjectStatus if status.is_bad_object)
RESULTS = (
    ObjectStatus.OK,
    ObjectStatus.MISSING,
    ObjectStatus.CANCELLED,
    ObjectStatus.IO_ERROR,
    ObjectStatus.TIMED_OUT,
    *BAD,
)


def storage_values(backend: str) -> dict[tuple[str, LabelValues], float]:
    counts = OrderCounts()
    counts.add(Operation.READ, bytes((ObjectStatus.OK, *RESULTS)), 1000, 0.25)
    counts.add(Operation.WRITE, bytes([ObjectStatus.OK, ObjectStatus.FULL]), 1000, 0.5)
    counts.add(Operation.WRITE, bytes([ObjectStatus.OK]), 1000, 0.5)
    contents = {"objects": 7, "bytes": 7000, "max_bytes": 9000, "objects_evicted": 2}
    others = {"evictions_failed": 5, "idle_connections": 3, "active_batches": 4, "incarnation": 1}
    return values_of(STORAGE_METRICS, contents | counts.figures() | others, (backend,))


def test_batches_bytes_and_seconds_are_counted_by_backend_and_operation() -> None:
    values = storage_values("file")

    assert values["l3_batch_seconds", ("file", "write")] == 1.0
    assert values["l3_batch_seconds", ("file", "clear")] == 0
    assert values["l3_read_bytes_total", ("file",)] == 2000
    assert values["l3_write_bytes_total", ("file",)] == 2000
    assert values["l3_active_batches", ("file",)] == 4


def test_every_error_is_told_as_zero_before_the_first() -> None:
    values = values_of(STORAGE_METRICS, OrderCounts().figures(), ("file",))

    assert values["l3_errors_total", ("file", "read", "bad_checksum")] == 0
    assert values["l3_errors_total", ("file", "write", "full")] == 0
    assert ("l3_errors_total", ("file", "exists", "full")) not in values


def test_what_a_bounded_backend_holds_and_evicts_is_told() -> None:
    values = storage_values("file")

    assert values["l3_stored_objects", ("file",)] == 7
    assert values["l3_used_bytes", ("file",)] == 7000
    assert values["l3_max_bytes", ("file",)] == 9000
    assert values["l3_evicted_objects_total", ("file",)] == 2
    assert values["l3_failed_evictions_total", ("file",)] == 5


def test_every_kind_of_error_and_of_bad_object_is_counted() -> None:
    values = storage_values("redis")

    kinds = {status.name.lower() for status in BAD}
    errors = {("read", kind) for kind in kinds | {"io_error", "timed_out"}} | {("write", "full")}
    assert {
        labels[1:]
        for (name, labels), value in values.items()
        if name == "l3_errors_total" and value
    } == errors
    assert {labels for name, labels in values if name == "kv_verify_failures_total"} == {
        ("redis", kind) for kind in kinds
    }
    assert values["l3_objects_total", ("redis", "read", "ok")] == 2
    assert values["l3_objects_total", ("redis", "read", "missing")] == 1
