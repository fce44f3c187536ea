"""What is counted is told under the name of its figure."""

from raydix.runtime.messages.client import FailureKind, FinishReason
from raydix.runtime.scheduler.counters import (
    Count,
    Counters,
    Duration,
    Prediction,
    Timing,
    Timings,
)


def counted(counters: Counters) -> dict[str, float]:
    return {name: number for name, number in counters.figures().items() if number}


def test_every_count_is_told_before_anything_happened() -> None:
    assert Counters().figures() == dict.fromkeys(Count, 0)


def test_the_time_per_output_token_is_observed_once_for_each_request() -> None:
    timings = Timings()
    timings.observe_completion(num_later=10, later_s=0.4, total_s=1.0)
    timings.observe_completion(num_later=0, later_s=0.0, total_s=0.2)

    figures = {name: figure for name, figure in timings.figures().items() if figure["sum"]}
    assert {name: (sum(f["counts"]), f["sum"]) for name, f in figures.items()} == {
        Timing.OUTPUT_TOKEN.value: (1, 0.04),
        Timing.REQUEST.value: (2, 1.2),
    }


def test_each_thing_is_counted_under_its_name() -> None:
    counters = Counters()
    counters.count(Count.LOADED_PAGES, 3)
    counters.count(Count.LOADED_PAGES)
    counters.add_s(Duration.COPY, 0.5)
    counters.count_end(FinishReason.STOP)
    counters.count_failure(FailureKind.BAD_REQUEST)
    counters.count_sources({"l1": 4, "computed:not_found": 2})
    counters.count_eviction(5, num_dropped=2)

    assert counted(counters) == {
        "loaded_pages": 4,
        "copy_s": 0.5,
        "finished_stop": 1,
        "failed_bad_request": 1,
        "prompt_tokens_l1": 4,
        "prompt_tokens_computed:not_found": 2,
        "evicted_pages": 5,
        "dropped_pages": 2,
    }


def test_a_prediction_is_counted_with_its_error() -> None:
    counters = Counters()
    counters.count_prediction(Prediction.LOAD, 1.0, 1.5)
    counters.count_prediction(Prediction.LOAD, 2.0, 1.5)

    assert counted(counters) == {
        "predicted_loads": 2,
        "load_predicted_s": 3.0,
        "load_measured_s": 3.0,
        "load_error_s": 1.0,
    }
