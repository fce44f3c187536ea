from raydix.runtime.actors.metric_samples import host_samples, scheduler_samples, storage_samples
from raydix.runtime.cache.host.arena_geometry import plan_arena
from raydix.runtime.cache.host.core import HostMemoryCore
from raydix.runtime.cache.host.events import HostSettings
from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout
from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.metrics import METRICS, Sample
from raydix.runtime.scheduler.core import SchedulerCore
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.storage.order_counts import Operation, OrderCounts

LAYOUT = KvLayout(
    page_size=16,
    dtype="float32",
    dtype_bytes=4,
    groups=(KvGroup(kind=GroupKind.FULL, layers=(0,), num_kv_heads=1, head_dim=4),),
)


def test_every_figure_of_the_cores_that_has_a_metric_becomes_a_sample() -> None:
    core = SchedulerCore(
        SchedulerSettings(layout=LAYOUT, num_lanes=1, num_pages=8, max_model_len=64)
    )
    samples = scheduler_samples(
        {**core.stats(), "prompt_tokens_l2": 5, "finished_stop": 2, "scheduler_cpu_s": 0.5}
    )
    values = {(sample.metric.name, sample.labels): sample.value for sample in samples}
    assert values["prompt_tokens_cached_by_source_total", ("l2",)] == 5
    assert values["request_success_total", ("stop",)] == 2
    assert values["l1_pages", ("all", "used")] == 0
    assert all(len(sample.labels) == len(sample.metric.labels) for sample in samples)


def values_of(samples: list[Sample]) -> dict[tuple[str, tuple[str, ...]], float]:
    return {(sample.metric.name, sample.labels): sample.value for sample in samples}


def storage_figures() -> dict[str, int | float]:
    counts = OrderCounts()
    found = (
        ObjectStatus.OK,
        ObjectStatus.MISSING,
        ObjectStatus.CANCELLED,
        ObjectStatus.IO_ERROR,
        ObjectStatus.TIMED_OUT,
    )
    bad = tuple(status for status in ObjectStatus if status.is_bad_object)
    counts.add(Operation.READ, bytes((ObjectStatus.OK, *found, *bad)), 1000, 0.25)
    counts.add(Operation.WRITE, bytes([ObjectStatus.OK, ObjectStatus.FULL]), 1000, 0.5)
    counts.add(Operation.WRITE, bytes([ObjectStatus.OK]), 1000, 0.5)
    backend = {
        "objects": 7,
        "bytes": 7000,
        "max_bytes": 9000,
        "objects_evicted": 2,
        "evictions_failed": 5,
        "idle_connections": 3,
    }
    return backend | counts.figures() | {"active_batches": 4, "incarnation": 1}


def test_storage_counts_batches_bytes_seconds_and_objects_by_backend_operation_and_result() -> None:
    values = values_of(storage_samples(storage_figures(), "file"))
    assert values["l3_batches_total", ("file", "write")] == 2
    assert values["l3_batch_seconds_total", ("file", "write")] == 1.0
    assert values["l3_batches_total", ("file", "exists")] == 0
    assert values["l3_read_bytes_total", ("file",)] == 2000
    assert values["l3_write_bytes_total", ("file",)] == 2000
    assert values["l3_objects_total", ("file", "read", "ok")] == 2
    assert values["l3_objects_total", ("file", "read", "missing")] == 1
    assert values["l3_active_batches", ("file",)] == 4
    assert values["l3_used_bytes", ("file",)] == 7000
    assert values["l3_evicted_objects_total", ("file",)] == 2
    assert values["l3_failed_evictions_total", ("file",)] == 5


def test_storage_counts_every_kind_of_error_and_of_bad_object() -> None:
    values = values_of(storage_samples(storage_figures(), "redis"))
    errors = {labels[1:] for name, labels in values if name == "l3_errors_total"}
    bad = {status.name.lower() for status in ObjectStatus if status.is_bad_object}
    assert errors == {("read", kind) for kind in bad | {"io_error", "timed_out"}} | {
        ("write", "full")
    }
    assert {labels for name, labels in values if name == "kv_verify_failures_total"} == {
        ("redis", kind) for kind in bad
    }


def test_host_counts_prefetched_tokens_retries_and_drops_by_reason() -> None:
    core = HostMemoryCore(plan_arena(LAYOUT, 1 << 16), HostSettings(page_size=16, has_storage=True))
    counted = {
        "l3_reads_ok": 3,
        "l3_reads_bad_checksum": 2,
        "l3_writes_dropped_full": 4,
        "l3_writes_dropped_failed": 1,
    }
    more = {"l3_writes_retried": 6, "l3_pages_known_missing": 8, "l3_overdue_batches": 9}
    values = values_of(host_samples({**core.stats(), **counted, **more}, page_tokens=16))
    assert values["prefetch_submitted_tokens_total", ()] == 5 * 16
    assert values["prefetch_completed_tokens_total", ()] == 3 * 16
    assert values["prefetch_unfulfilled_tokens_total", ("bad_checksum",)] == 2 * 16
    assert values["l3_dropped_pages_total", ("full",)] == 4
    assert values["l3_dropped_pages_total", ("failed",)] == 1
    assert values["l3_retried_pages_total", ()] == 6
    assert values["l3_known_missing_pages_total", ()] == 8
    assert values["l3_overdue_batches_total", ()] == 9
    assert values["l3_breaker_state", ()] == 0


def test_every_metric_has_a_figure_behind_it_and_no_two_samples_collide() -> None:
    scheduler_core = SchedulerCore(
        SchedulerSettings(layout=LAYOUT, num_lanes=1, num_pages=8, max_model_len=64)
    )
    counted = (
        "retracted_requests",
        "prompt_tokens",
        "generation_tokens",
        "evicted_pages",
        "loaded_pages",
    )
    counted += (
        "backed_up_pages",
        "dropped_pages",
        "stale_loads",
        "finished_stop",
        "failed_overloaded",
    )
    counted += (
        "first_tokens",
        "first_token_s",
        "later_tokens",
        "later_tokens_s",
        "complete_requests",
    )
    counted += (
        "complete_requests_s",
        "compute_s",
        "copy_s",
        "prompt_tokens_l1",
        "num_plans",
        "scheduler_cpu_s",
    )
    counted += (
        "load_decisions",
        "recompute_decisions",
        "predicted_loads",
        "predicted_prefills",
        "promoted_pages",
    )
    counted += tuple(
        f"{what}_{part}_s"
        for what in ("load", "prefill")
        for part in ("predicted", "measured", "error")
    )
    scheduler_figures = {**scheduler_core.stats(), **dict.fromkeys(counted, 1)}
    host_core = HostMemoryCore(
        plan_arena(LAYOUT, 1 << 16), HostSettings(page_size=16, has_storage=True)
    )
    host_counted = (
        "pages_dropped",
        "stale_events",
        "l3_reads_ok",
        "l3_reads_bad_checksum",
        "l3_pages_known_missing",
    )
    host_counted += (
        "l3_writes_dropped_full",
        "l3_writes_dropped_failed",
        "l3_writes_retried",
        "l3_overdue_batches",
    )
    host_figures = {**host_core.stats(), **dict.fromkeys(host_counted, 1)}

    samples = scheduler_samples(scheduler_figures)
    samples += host_samples(host_figures, page_tokens=16) + storage_samples(
        storage_figures(), "file"
    )

    assert {sample.metric.name for sample in samples} == set(METRICS)
    keys = [(sample.metric.name, sample.labels) for sample in samples]
    assert len(keys) == len(set(keys))


def test_usage_counts_what_requests_hold_and_hits_count_all_tiers() -> None:
    figures = {
        "l1_total_pages": 100,
        "l1_used_pages": 60,
        "l1_cached_pages": 50,
        "l1_locked_pages": 10,
    }
    sources = {
        "prompt_tokens_l1": 32,
        "prompt_tokens_l3": 16,
        "prompt_tokens_computed:not_found": 52,
    }
    samples = scheduler_samples({**figures, **sources, "prompt_tokens": 120})
    values = {(sample.metric.name, sample.labels): sample.value for sample in samples}
    assert values["kv_cache_usage_perc", ()] == 0.2
    assert values["l1_pages", ("all", "free")] == 40
    assert values["prefix_cache_queries_total", ()] == 100
    assert values["prefix_cache_hits_total", ()] == 48


def test_host_without_l3_says_so() -> None:
    core = HostMemoryCore(plan_arena(LAYOUT, 1 << 16), HostSettings(page_size=16))
    assert values_of(host_samples(core.stats(), page_tokens=16))["l3_breaker_state", ()] == 3
