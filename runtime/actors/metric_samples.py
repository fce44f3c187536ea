"""The cores' figures as samples of the named metrics. Pure."""

from collections.abc import Mapping

from raydix.runtime.messages.host import ObjectStatus
from raydix.runtime.metrics import METRICS, Sample
from raydix.runtime.storage.order_counts import Operation

Figures = Mapping[str, object]
Table = Mapping[str, tuple[str, tuple[str, ...]]]
"""Figure to metric and label values."""

_ALL_RANKS = "all"
_PREDICTED = ("load", "prefill")
_PREDICTION_PARTS = ("predicted", "measured", "error")

_SCHEDULER: Table = {
    "num_requests_running": ("num_requests_running", ()),
    "num_requests_waiting": ("num_requests_waiting", ()),
    "retracted_requests": ("request_retracted_total", ("no_page",)),
    "prompt_tokens": ("prompt_tokens_total", ()),
    "generation_tokens": ("generation_tokens_total", ()),
    "num_plans": ("steps_total", (_ALL_RANKS,)),
    "scheduler_cpu_s": ("scheduler_cpu_seconds_total", ()),
    "compute_s": ("step_seconds_total", (_ALL_RANKS,)),
    "first_tokens": ("time_to_first_token_count_total", ()),
    "first_token_s": ("time_to_first_token_seconds_total", ()),
    "later_tokens": ("inter_token_latency_count_total", ()),
    "later_tokens_s": ("inter_token_latency_seconds_total", ()),
    "complete_requests": ("e2e_request_latency_count_total", ()),
    "complete_requests_s": ("e2e_request_latency_seconds_total", ()),
    "load_decisions": ("load_or_recompute_total", ("load",)),
    "recompute_decisions": ("load_or_recompute_total", ("recompute",)),
    **{
        f"{what}_{part}_s": (f"{what}_{part}_seconds_total", ())
        for what in _PREDICTED
        for part in _PREDICTION_PARTS
    },
    **{f"predicted_{what}s": (f"{what}_predicted_count_total", ()) for what in _PREDICTED},
    "l1_used_pages": ("l1_pages", (_ALL_RANKS, "used")),
    "l1_cached_pages": ("l1_pages", (_ALL_RANKS, "cached")),
    "l1_locked_pages": ("l1_pages", (_ALL_RANKS, "locked")),
    "evicted_pages": ("l1_evicted_pages_total", (_ALL_RANKS,)),
    "loaded_pages": ("load_back_pages_total", (_ALL_RANKS,)),
    "promoted_pages": ("promoted_pages_total", (_ALL_RANKS,)),
    "backed_up_pages": ("backup_pages_total", (_ALL_RANKS,)),
    "dropped_pages": ("backup_dropped_pages_total", (_ALL_RANKS,)),
    "copy_s": ("copy_seconds_total", (_ALL_RANKS,)),
    "stale_loads": ("stale_loads_total", (_ALL_RANKS,)),
}
_SCHEDULER_FAMILIES: Mapping[str, str] = {
    "finished_": "request_success_total",
    "failed_": "request_failure_total",
    "prompt_tokens_": "prompt_tokens_cached_by_source_total",
}
_HOST: Table = {
    "pages_free": ("l2_pages", ("free",)),
    "pages_filling": ("l2_pages", ("filling",)),
    "pages_ready": ("l2_pages", ("ready",)),
    "pages_quarantined": ("l2_pages", ("quarantined",)),
    "ready_bytes": ("l2_used_bytes", ()),
    "pages_dropped": ("l2_evicted_pages_total", ()),
    "leases": ("kv_leases_active", ()),
    "stale_events": ("l2_stale_events_total", ()),
    "l3_breaker_trips": ("l3_breaker_trips_total", ()),
    "l3_overdue_batches": ("l3_overdue_batches_total", ()),
    "l3_pages_known_missing": ("l3_known_missing_pages_total", ()),
    "l3_writes_pending": ("l3_queued_pages", ()),
    "l3_writes_retried": ("l3_retried_pages_total", ()),
}
_STORAGE: Mapping[str, str] = {
    "read_bytes": "l3_read_bytes_total",
    "write_bytes": "l3_write_bytes_total",
    "active_batches": "l3_active_batches",
    "objects": "l3_stored_objects",
    "bytes": "l3_used_bytes",
    "max_bytes": "l3_max_bytes",
    "objects_evicted": "l3_evicted_objects_total",
    "evictions_failed": "l3_failed_evictions_total",
}
_HITS = ("l1", "l2", "l3")
_BREAKER_STATES = {"closed": 0.0, "half_open": 1.0, "open": 2.0, "none": 3.0}
_NO_ERRORS = (ObjectStatus.OK, ObjectStatus.MISSING, ObjectStatus.CANCELLED)


def scheduler_samples(figures: Figures) -> list[Sample]:
    """Samples of what `SchedulerActor.stats` tells."""
    samples = _by_table(_SCHEDULER, figures)
    for name, value in figures.items():
        if name in _SCHEDULER:
            continue
        for prefix, metric in _SCHEDULER_FAMILIES.items():
            if name.startswith(prefix):
                samples.append(_sample(metric, (name.removeprefix(prefix),), value))
    return samples + _l1_usage(figures) + _prefix_cache(figures)


def _l1_usage(figures: Figures) -> list[Sample]:
    total, used, cached, locked = (
        _figure(figures, f"l1_{state}_pages") for state in ("total", "used", "cached", "locked")
    )
    return [
        _sample("l1_pages", (_ALL_RANKS, "free"), total - used),
        _sample("kv_cache_usage_perc", (), (used - cached + locked) / total if total else 0.0),
    ]


def _prefix_cache(figures: Figures) -> list[Sample]:
    """The sum over all sources is every prompt token that was told of, once."""
    by_source = {
        name: _number(value) for name, value in figures.items() if name.startswith("prompt_tokens_")
    }
    return [
        _sample("prefix_cache_queries_total", (), sum(by_source.values())),
        _sample(
            "prefix_cache_hits_total",
            (),
            sum(by_source.get(f"prompt_tokens_{tier}", 0.0) for tier in _HITS),
        ),
    ]


def host_samples(figures: Figures, *, page_tokens: int) -> list[Sample]:
    """Samples of what `HostMemoryActor.stats` tells. `page_tokens`: of one host page."""
    samples = _by_table(_HOST, figures)
    reads = {
        name.removeprefix("l3_reads_"): value
        for name, value in figures.items()
        if name.startswith("l3_reads_")
    }
    for status, value in reads.items():
        samples.extend(_prefetch_samples(status, value, page_tokens))
    samples.append(
        _sample(
            "prefetch_submitted_tokens_total", (), sum(map(_number, reads.values())) * page_tokens
        )
    )
    for name, value in figures.items():
        if name.startswith("l3_writes_dropped_"):
            samples.append(
                _sample("l3_dropped_pages_total", (name.removeprefix("l3_writes_dropped_"),), value)
            )
    samples.append(_sample("l3_breaker_state", (), _BREAKER_STATES[str(figures["l3_breaker"])]))
    return samples


def storage_samples(figures: Figures, backend: str) -> list[Sample]:
    """Samples of what `StorageActor.stats` tells."""
    samples = [
        _sample(metric, (backend,), figures[name])
        for name, metric in _STORAGE.items()
        if name in figures
    ]
    for operation in Operation:
        labels = (backend, operation.value)
        samples.append(_sample("l3_batches_total", labels, figures.get(f"{operation}_batches", 0)))
        samples.append(_sample("l3_batch_seconds_total", labels, figures[f"{operation}_seconds"]))
        for status in ObjectStatus:
            result = status.name.lower()
            value = figures.get(f"{operation}_objects_{result}")
            if value is None:
                continue
            samples.append(_sample("l3_objects_total", (*labels, result), value))
            if status not in _NO_ERRORS:
                samples.append(_sample("l3_errors_total", (*labels, result), value))
            if status.is_bad_object:
                samples.append(_sample("kv_verify_failures_total", (backend, result), value))
    return samples


def _prefetch_samples(status: str, value: object, page_tokens: int) -> list[Sample]:
    num_tokens = _number(value) * page_tokens
    if status == "ok":
        return [_sample("prefetch_completed_tokens_total", (), num_tokens)]
    return [_sample("prefetch_unfulfilled_tokens_total", (status,), num_tokens)]


def _by_table(table: Table, figures: Figures) -> list[Sample]:
    return [
        _sample(metric, labels, figures[name])
        for name, (metric, labels) in table.items()
        if name in figures
    ]


def _sample(metric: str, labels: tuple[str, ...], value: object) -> Sample:
    return Sample(METRICS[metric], labels, _number(value))


def _figure(figures: Figures, name: str) -> float:
    return _number(figures.get(name, 0))


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)
