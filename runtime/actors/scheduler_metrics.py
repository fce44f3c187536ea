"""The metrics of the Scheduler, from the figures of `SchedulerActor.stats`."""

from collections.abc import Iterable

from raydix.runtime.actors.expert_metrics import EXPERT_METRICS
from raydix.runtime.metrics import (
    Derived,
    Family,
    Figure,
    Figures,
    LabelValues,
    Unit,
    counter,
    gauge,
    members,
    number,
)
from raydix.runtime.scheduler.counters import Count, Duration

_RANK = ("rank",)
_ALL = ("all",)
"""The Scheduler's figures are sums over its ranks."""
_TIERS = ("l1", "l2", "l3")


def _l1_pages(figures: Figures) -> Iterable[tuple[LabelValues, float]]:
    totals = members(figures, "l1_total_pages_")
    for state in ("used", "cached", "locked"):
        for group, pages in members(figures, f"l1_{state}_pages_").items():
            yield ("all", group, state), pages
            if state == "used":
                yield ("all", group, "free"), totals[group] - pages


def _l1_usage(figures: Figures) -> Iterable[tuple[LabelValues, float]]:
    total = _pages(figures, "total")
    # Cached pages are used ones, and locked pages cached ones.
    held = _pages(figures, "used") - _pages(figures, "cached") + _pages(figures, "locked")
    yield (), held / total if total else 0.0


def _pages(figures: Figures, state: str) -> float:
    return number(figures.get(f"l1_{state}_pages", 0))


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
        "Requests that generate now.",
        Figure("num_requests_running"),
    ),
    gauge(
        "num_requests_waiting",
        Unit.COUNT,
        "Requests that wait for their first admission or for a new one.",
        Figure("num_requests_waiting"),
    ),
    counter(
        "request_success_total",
        Unit.COUNT,
        "Requests that ended well.",
        Family("finished_"),
        labels=("finished_reason",),
    ),
    counter(
        "request_failure_total",
        Unit.COUNT,
        "Requests that ended with a typed error.",
        Family("failed_"),
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
        "prompt_tokens_total",
        Unit.TOKENS,
        "Prompt tokens of admitted requests.",
        Figure(Count.PROMPT_TOKENS),
    ),
    counter(
        "prompt_tokens_cached_by_source_total",
        Unit.TOKENS,
        "Prompt tokens by tier, or by reason to compute.",
        Family("prompt_tokens_"),
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
    counter(
        "time_to_first_token_seconds_total",
        Unit.SECONDS,
        "Sum over requests; divide by the count.",
        Figure(Duration.FIRST_TOKEN),
    ),
    counter(
        "time_to_first_token_count_total",
        Unit.COUNT,
        "Requests that gave a first token.",
        Figure(Count.FIRST_TOKENS),
    ),
    counter(
        "inter_token_latency_seconds_total",
        Unit.SECONDS,
        "Sum over finished requests; divide by the count.",
        Figure(Duration.LATER_TOKENS),
    ),
    counter(
        "inter_token_latency_count_total",
        Unit.COUNT,
        "Output tokens after the first, of finished requests.",
        Figure(Count.LATER_TOKENS),
    ),
    counter(
        "e2e_request_latency_seconds_total",
        Unit.SECONDS,
        "Sum over finished requests; divide by the count.",
        Figure(Duration.COMPLETE_REQUESTS),
    ),
    counter(
        "e2e_request_latency_count_total",
        Unit.COUNT,
        "Finished requests.",
        Figure(Count.COMPLETE_REQUESTS),
    ),
)

_STEPS = (
    counter("steps_total", Unit.COUNT, "Model steps.", Figure("num_plans", _ALL), labels=_RANK),
    counter(
        "step_seconds_total",
        Unit.SECONDS,
        "Device time of model steps.",
        Figure(Duration.COMPUTE, _ALL),
        labels=_RANK,
    ),
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
    ),
    gauge(
        "l1_pages",
        Unit.PAGES,
        "L1 pages of each KV group by state; locked ones are cached, cached ones are used.",
        Derived(_l1_pages),
        labels=("rank", "group", "state"),
    ),
    counter(
        "l1_evicted_pages_total",
        Unit.PAGES,
        "Pages that left L1.",
        Figure(Count.EVICTED_PAGES, _ALL),
        labels=_RANK,
    ),
    counter(
        "load_back_pages_total",
        Unit.PAGES,
        "Pages copied from L2 to L1.",
        Figure(Count.LOADED_PAGES, _ALL),
        labels=_RANK,
    ),
    counter(
        "promoted_pages_total",
        Unit.PAGES,
        "Those of them whose request still waited for L3.",
        Figure(Count.PROMOTED_PAGES, _ALL),
        labels=_RANK,
    ),
    counter(
        "copy_seconds_total",
        Unit.SECONDS,
        "Time in which pages were copied between L1 and L2.",
        Figure(Duration.COPY, _ALL),
        labels=_RANK,
    ),
    counter(
        "backup_pages_total",
        Unit.PAGES,
        "Pages copied from L1 to L2.",
        Figure(Count.BACKED_UP_PAGES, _ALL),
        labels=_RANK,
    ),
    counter(
        "backup_dropped_pages_total",
        Unit.PAGES,
        "Pages that were evicted without a copy in L2.",
        Figure(Count.DROPPED_PAGES, _ALL),
        labels=_RANK,
    ),
    counter(
        "stale_loads_total",
        Unit.COUNT,
        "Loads whose host pages changed hands meanwhile.",
        Figure(Count.STALE_LOADS, _ALL),
        labels=_RANK,
    ),
)

SCHEDULER_METRICS = (
    *_REQUESTS,
    *_LATENCIES,
    *_STEPS,
    *_PREDICTIONS,
    *_L1,
    *EXPERT_METRICS,
)
