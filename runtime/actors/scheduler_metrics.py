"""The metrics of the Scheduler, from the figures of `SchedulerActor.stats`."""

from collections.abc import Iterable

from raydix.runtime.actors.expert_metrics import EXPERT_METRICS
from raydix.runtime.messages.client import FailureKind, FinishReason
from raydix.runtime.messages.host import PageSource
from raydix.runtime.metrics import (
    ByRank,
    Derived,
    Family,
    Figure,
    Figures,
    LabelValues,
    Metric,
    MetricGroup,
    Unit,
    counter,
    figures_by_rank,
    gauge,
    histogram,
    members,
    metrics_of,
    number,
)
from raydix.runtime.scheduler.counters import Count, Duration, Timing

_RANK = ("rank",)
_TIERS = ("l1", "l2", "peer", "l3")
_ENDS = tuple(reason.value for reason in FinishReason if reason is not FinishReason.PREFETCH)
_FAILURES = tuple(kind.name.lower() for kind in FailureKind)
_SOURCES = tuple(source.label for source in PageSource if source is not PageSource.PENDING)


def _timing(name: str, timing: Timing, description: str) -> Metric:
    return histogram(name, timing.bounds_s, description, Figure(timing.value))


def _by_rank(name: str, unit: Unit, description: str, figure: str) -> Metric:
    return counter(name, unit, description, ByRank(figure), labels=_RANK)


def _l1_pages(figures: Figures) -> Iterable[tuple[LabelValues, float]]:
    for rank, own in enumerate(figures_by_rank(figures)):
        for group, total in members(own, "l1_total_pages_").items():
            used, cached, locked = [
                number(own[f"l1_{state}_pages_{group}"]) for state in ("used", "cached", "locked")
            ]
            # Cached pages are used ones, and locked pages cached ones.
            pages = {
                "free": total - used,
                "private": used - cached,
                "locked": locked,
                "evictable": cached - locked,
            }
            for state, num_pages in pages.items():
                yield (str(rank), group, state), num_pages


def _l1_usage(figures: Figures) -> Iterable[tuple[LabelValues, float]]:
    for rank, own in enumerate(figures_by_rank(figures)):
        total, used, cached, locked = [
            sum(members(own, f"l1_{state}_pages_").values())
            for state in ("total", "used", "cached", "locked")
        ]
        yield (str(rank),), (used - cached + locked) / total if total else 0.0


def _prefix_cache_queries(figures: Figures) -> Iterable[tuple[LabelValues, float]]:
    # Every prompt token has one source.
    yield (), sum(members(figures, "prompt_tokens_").values())


def _prefix_cache_hits(figures: Figures) -> Iterable[tuple[LabelValues, float]]:
    by_source = members(figures, "prompt_tokens_")
    yield (), sum(by_source.get(tier, 0.0) for tier in _TIERS)


_REQUESTS = (
    gauge(
        "num_requests_running",
        Unit.COUNT,
        "Admitted requests that compute their prompt or generate.",
        Figure("num_requests_running"),
    ),
    gauge(
        "num_requests_loading",
        Unit.COUNT,
        "Admitted requests whose pages from L2 are on their way.",
        Figure("num_requests_loading"),
    ),
    gauge(
        "num_requests_waiting",
        Unit.COUNT,
        "Requests that wait for their first admission or for a new one.",
        Figure("num_requests_waiting"),
    ),
    gauge(
        "prompt_wait_seconds",
        Unit.SECONDS,
        "Predicted time that a new request waits for the prompts before it, as routing counts it.",
        Figure("prompt_wait_s"),
    ),
    gauge(
        "num_requests_leaving",
        Unit.COUNT,
        "Requests that have their first token, and go on elsewhere once L2 has their pages.",
        Figure("num_requests_leaving"),
    ),
    gauge(
        "l1_reserved_pages",
        Unit.PAGES,
        "Pages of L1 that are kept, or loaded, for requests that other engines begin.",
        Figure("l1_reserved_pages"),
    ),
    counter(
        "request_success_total",
        Unit.COUNT,
        "Requests that ended well.",
        Family("finished_", _ENDS),
        labels=("finished_reason",),
    ),
    counter(
        "request_failure_total",
        Unit.COUNT,
        "Requests that ended with a typed error.",
        Family("failed_", _FAILURES),
        labels=("kind",),
    ),
    counter(
        "request_retracted_total",
        Unit.COUNT,
        "Requests put back into the queue.",
        Figure(Count.RETRACTED_REQUESTS, ("no_page",)),
        labels=("reason",),
    ),
    counter(
        "prefetches_total",
        Unit.COUNT,
        "Prompts that were prefetched and not generated from; they are no requests.",
        Figure(Count.PREFETCHES),
    ),
    counter(
        "prompt_tokens_total",
        Unit.TOKENS,
        "Prompt tokens of accepted requests.",
        Figure(Count.PROMPT_TOKENS),
    ),
    counter(
        "prompt_tokens_cached_by_source_total",
        Unit.TOKENS,
        "Prompt tokens by tier, or by reason to compute.",
        Family("prompt_tokens_", _SOURCES),
        labels=("source",),
    ),
    counter(
        "prefix_cache_queries_total",
        Unit.TOKENS,
        "Prompt tokens that were looked for in the cache.",
        Derived(_prefix_cache_queries),
    ),
    counter(
        "prefix_cache_hits_total",
        Unit.TOKENS,
        "Prompt tokens that any tier had.",
        Derived(_prefix_cache_hits),
    ),
    counter(
        "generation_tokens_total", Unit.TOKENS, "Output tokens.", Figure(Count.GENERATION_TOKENS)
    ),
)

_LATENCIES = (
    _timing(
        "time_to_first_token_seconds",
        Timing.FIRST_TOKEN,
        "From a request's arrival to its first token.",
    ),
    _timing(
        "time_per_output_token_seconds",
        Timing.OUTPUT_TOKEN,
        "Mean time between the tokens of a complete request; one value for each request.",
    ),
    _timing(
        "request_queue_time_seconds",
        Timing.QUEUE,
        "From a request's arrival to its first admission.",
    ),
    _timing(
        "e2e_request_latency_seconds",
        Timing.REQUEST,
        "From a request's arrival to its last token, if it is complete.",
    ),
)

_STEPS = (
    _by_rank("steps_total", Unit.COUNT, "Model steps.", Count.PLANS),
    _by_rank("step_seconds_total", Unit.SECONDS, "Device time of model steps.", Duration.COMPUTE),
    counter(
        "scheduler_cpu_seconds_total",
        Unit.SECONDS,
        "CPU time of the Scheduler's loop.",
        Figure("scheduler_cpu_s"),
    ),
)

_PREDICTIONS = (
    counter(
        "load_or_recompute_total",
        Unit.COUNT,
        "Requests that found pages in L2, by what was done.",
        Figure(Count.LOAD_DECISIONS, ("load",)),
        Figure(Count.RECOMPUTE_DECISIONS, ("recompute",)),
        labels=("decision",),
    ),
    counter(
        "load_predicted_seconds_total",
        Unit.SECONDS,
        "Predicted time of loads from L2; divide by the count.",
        Figure("load_predicted_s"),
    ),
    counter(
        "load_measured_seconds_total",
        Unit.SECONDS,
        "Measured time of the same loads.",
        Figure("load_measured_s"),
    ),
    counter(
        "load_error_seconds_total",
        Unit.SECONDS,
        "Sum of |predicted - measured| of the same loads.",
        Figure("load_error_s"),
    ),
    counter(
        "load_predicted_count_total",
        Unit.COUNT,
        "Reports of loads that have ended.",
        Figure("predicted_loads"),
    ),
    counter(
        "prefill_predicted_seconds_total",
        Unit.SECONDS,
        "Predicted time of steps with prompt tokens; divide by the count.",
        Figure("prefill_predicted_s"),
    ),
    counter(
        "prefill_measured_seconds_total",
        Unit.SECONDS,
        "Measured time of the same steps.",
        Figure("prefill_measured_s"),
    ),
    counter(
        "prefill_error_seconds_total",
        Unit.SECONDS,
        "Sum of |predicted - measured| of the same steps.",
        Figure("prefill_error_s"),
    ),
    counter(
        "prefill_predicted_count_total",
        Unit.COUNT,
        "Steps with prompt tokens.",
        Figure("predicted_prefills"),
    ),
)

_L1 = (
    gauge(
        "kv_cache_usage_perc",
        Unit.FRACTION,
        "Part of L1 that running requests hold, from 0 to 1.",
        Derived(_l1_usage),
        labels=_RANK,
    ),
    gauge(
        "l1_pages",
        Unit.PAGES,
        "L1 pages of each KV group: free, private to requests, locked or evictable in the cache.",
        Derived(_l1_pages),
        labels=("rank", "group", "state"),
    ),
    _by_rank("l1_evicted_pages_total", Unit.PAGES, "Pages that left L1.", Count.EVICTED_PAGES),
    _by_rank(
        "load_back_pages_total", Unit.PAGES, "Pages copied from L2 to L1.", Count.LOADED_PAGES
    ),
    _by_rank(
        "promoted_pages_total",
        Unit.PAGES,
        "Those of them whose request still waited for L3.",
        Count.PROMOTED_PAGES,
    ),
    _timing(
        "load_back_seconds", Timing.LOAD, "From a load's order to its end on all ranks of a lane."
    ),
    _by_rank(
        "backup_pages_total", Unit.PAGES, "Pages copied from L1 to L2.", Count.BACKED_UP_PAGES
    ),
    _by_rank(
        "backup_dropped_pages_total",
        Unit.PAGES,
        "Pages that were evicted without a copy in L2.",
        Count.DROPPED_PAGES,
    ),
    _timing(
        "backup_seconds", Timing.BACKUP, "From a backup's order to its end on all ranks of a lane."
    ),
    _by_rank(
        "copy_seconds_total",
        Unit.SECONDS,
        "Time in which a rank copied pages from L2 to L1.",
        Duration.COPY,
    ),
    _by_rank(
        "stale_loads_total",
        Unit.COUNT,
        "Loads whose host pages changed hands meanwhile.",
        Count.STALE_LOADS,
    ),
)

SCHEDULER_GROUPS = (
    MetricGroup("Requests", _REQUESTS),
    MetricGroup("Latency", _LATENCIES),
    MetricGroup("Steps", _STEPS),
    MetricGroup("L1", _L1),
    MetricGroup("Predictions", _PREDICTIONS),
    MetricGroup("Experts", EXPERT_METRICS),
)
SCHEDULER_METRICS = metrics_of(SCHEDULER_GROUPS)
