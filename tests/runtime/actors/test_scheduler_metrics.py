from raydix.runtime.actors.scheduler_metrics import SCHEDULER_METRICS
from raydix.runtime.metrics import BY_RANK
from raydix.runtime.scheduler.core import SchedulerCore
from raydix.runtime.scheduler.settings import SchedulerSettings
from tests.runtime.actors.sample_values import LAYOUT, values_of


def test_what_the_core_has_counted_becomes_samples() -> None:
    settings = SchedulerSettings(layout=LAYOUT, num_lanes=1, num_pages=(8,), max_model_len=64)
    counted = {"prompt_tokens_l2": 5, "finished_stop": 2, "scheduler_cpu_s": 0.5}

    values = values_of(SCHEDULER_METRICS, {**SchedulerCore(settings).stats(), **counted})

    assert values["prompt_tokens_cached_by_source_total", ("l2",)] == 5
    assert values["request_success_total", ("stop",)] == 2
    assert values["scheduler_cpu_seconds_total", ()] == 0.5
    assert values["l1_pages", ("0", "0", "free")] == 8


def test_the_states_of_pages_do_not_overlap() -> None:
    pages = {"total": 100, "used": 60, "cached": 50, "locked": 10}
    own = {f"l1_{state}_pages_0": count for state, count in pages.items()}

    values = values_of(SCHEDULER_METRICS, {BY_RANK: [own]})

    states = {labels[2]: value for (name, labels), value in values.items() if name == "l1_pages"}
    assert states == {"free": 40, "private": 10, "locked": 10, "evictable": 40}
    assert values["kv_cache_usage_perc", ("0",)] == 0.2


def test_hits_count_all_tiers_and_queries_every_prompt_token_with_a_source() -> None:
    sources = {
        "prompt_tokens_l1": 32,
        "prompt_tokens_l3": 16,
        "prompt_tokens_computed:not_found": 52,
    }

    values = values_of(SCHEDULER_METRICS, {**sources, "prompt_tokens": 120})

    assert values["prefix_cache_queries_total", ()] == 100
    assert values["prefix_cache_hits_total", ()] == 48
    assert values["prompt_tokens_total", ()] == 120
