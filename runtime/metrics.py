"""Names of all metrics."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

PREFIX = "raydix_"


class MetricKind(Enum):
    """A counter only grows; a gauge is set."""

    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its name without the prefix, what it tells, and the labels that each sample
    carries.
    """

    name: str
    kind: MetricKind
    description: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one metric."""

    metric: Metric
    labels: tuple[str, ...]
    """Values, in the order of `metric.labels`."""
    value: float


def _counter(name: str, description: str, *labels: str) -> Metric:
    return Metric(name, MetricKind.COUNTER, description, labels)


def _gauge(name: str, description: str, *labels: str) -> Metric:
    return Metric(name, MetricKind.GAUGE, description, labels)


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        _gauge("num_requests_running", "Requests that generate now."),
        _gauge(
            "num_requests_waiting", "Requests that wait for their first admission or for a new one."
        ),
        _counter("request_success_total", "Requests that ended well.", "finished_reason"),
        _counter("request_failure_total", "Requests that ended with a typed error.", "kind"),
        _counter("request_retracted_total", "Requests put back into the queue.", "reason"),
        _counter("prompt_tokens_total", "Prompt tokens of admitted requests."),
        _counter(
            "prompt_tokens_cached_by_source_total",
            "Prompt tokens by tier, or by reason to compute.",
            "source",
        ),
        _counter("prefix_cache_queries_total", "Prompt tokens that were looked for in the cache."),
        _counter("prefix_cache_hits_total", "Prompt tokens that any tier had."),
        _counter("generation_tokens_total", "Output tokens."),
        _counter("time_to_first_token_seconds_total", "Sum over requests; divide by the count."),
        _counter("time_to_first_token_count_total", "Requests that gave a first token."),
        _counter(
            "inter_token_latency_seconds_total", "Sum over finished requests; divide by the count."
        ),
        _counter(
            "inter_token_latency_count_total",
            "Output tokens after the first, of finished requests.",
        ),
        _counter(
            "e2e_request_latency_seconds_total", "Sum over finished requests; divide by the count."
        ),
        _counter("e2e_request_latency_count_total", "Finished requests."),
        _counter("steps_total", "Model steps.", "rank"),
        _counter("step_seconds_total", "Device time of model steps.", "rank"),
        _counter("scheduler_cpu_seconds_total", "CPU time of the Scheduler's loop."),
        _gauge("kv_cache_usage_perc", "Part of L1 that running requests hold, from 0 to 1."),
        _counter(
            "load_or_recompute_total",
            "Requests that found pages in L2, by what was done.",
            "decision",
        ),
        _counter(
            "load_predicted_seconds_total", "Predicted time of loads from L2; divide by the count."
        ),
        _counter("load_measured_seconds_total", "Measured time of the same loads."),
        _counter("load_error_seconds_total", "Sum of |predicted - measured| of the same loads."),
        _counter("load_predicted_count_total", "Reports of loads that have ended."),
        _counter(
            "prefill_predicted_seconds_total",
            "Predicted time of steps with prompt tokens; divide by the count.",
        ),
        _counter("prefill_measured_seconds_total", "Measured time of the same steps."),
        _counter("prefill_error_seconds_total", "Sum of |predicted - measured| of the same steps."),
        _counter("prefill_predicted_count_total", "Steps with prompt tokens."),
        _gauge(
            "l1_pages",
            "L1 pages by state; locked ones are cached, cached ones are used.",
            "rank",
            "state",
        ),
        _counter("l1_evicted_pages_total", "Pages that left L1.", "rank"),
        _counter("load_back_pages_total", "Pages copied from L2 to L1.", "rank"),
        _counter(
            "promoted_pages_total", "Those of them whose request still waited for L3.", "rank"
        ),
        _counter(
            "copy_seconds_total", "Time in which pages were copied between L1 and L2.", "rank"
        ),
        _counter("backup_pages_total", "Pages copied from L1 to L2.", "rank"),
        _counter(
            "backup_dropped_pages_total", "Pages that were evicted without a copy in L2.", "rank"
        ),
        _counter("stale_loads_total", "Loads whose host pages changed hands meanwhile.", "rank"),
        _counter(
            "prefetch_submitted_tokens_total", "Tokens of the pages whose reads from L3 have ended."
        ),
        _counter("prefetch_completed_tokens_total", "Tokens that arrived from L3."),
        _counter(
            "prefetch_unfulfilled_tokens_total",
            "Tokens of the pages that L3 did not bring.",
            "reason",
        ),
        _gauge("l2_pages", "Host pages by state.", "state"),
        _gauge("l2_used_bytes", "Bytes of READY host pages."),
        _counter("l2_evicted_pages_total", "Pages that left L2."),
        _gauge("kv_leases_active", "Leases on host pages."),
        _counter(
            "l2_stale_events_total", "What earlier links brought to HostMemory, which was dropped."
        ),
        _counter(
            "l3_batches_total", "Batches that the storage actor has answered.", "backend", "op"
        ),
        _counter(
            "l3_batch_seconds_total",
            "Time that they took once a thread had taken them.",
            "backend",
            "op",
        ),
        _counter(
            "l3_objects_total", "Objects of these batches by result.", "backend", "op", "result"
        ),
        _counter(
            "l3_errors_total", "Those of them that failed or were bad.", "backend", "op", "kind"
        ),
        _counter(
            "kv_verify_failures_total",
            "Those whose bytes did not pass verification.",
            "backend",
            "kind",
        ),
        _counter("l3_read_bytes_total", "Bytes read from L3.", "backend"),
        _counter("l3_write_bytes_total", "Bytes written to L3.", "backend"),
        _gauge(
            "l3_active_batches", "Batches that wait for a thread or are carried out.", "backend"
        ),
        _gauge("l3_stored_objects", "Objects of a backend that Raydix bounds.", "backend"),
        _gauge("l3_used_bytes", "Bytes of a backend that Raydix bounds.", "backend"),
        _gauge("l3_max_bytes", "Its bound; 0 without one.", "backend"),
        _counter("l3_evicted_objects_total", "Objects that gave way to others there.", "backend"),
        _counter(
            "l3_failed_evictions_total", "Objects there that could not be deleted.", "backend"
        ),
        _gauge("l3_breaker_state", "0 closed, 1 half open, 2 open, 3 no backend is attached."),
        _counter("l3_breaker_trips_total", "How often a kind of operation was given up."),
        _counter("l3_overdue_batches_total", "Batches that were not answered in time."),
        _counter(
            "l3_known_missing_pages_total", "Pages not searched for: L3 lacked them a moment ago."
        ),
        _gauge("l3_queued_pages", "Pages that wait to be written to L3 or are being written."),
        _counter("l3_retried_pages_total", "Failed writes that were queued again."),
        _counter("l3_dropped_pages_total", "Pages that were not written to L3.", "reason"),
    )
}
