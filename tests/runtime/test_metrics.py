import pytest

from raydix.runtime.metrics import METRICS, Counters


def test_counters_add_up_per_label_value() -> None:
    counters = Counters()
    counters.inc("prompt_tokens_cached_by_source_total", 16, source="l1")
    counters.inc("prompt_tokens_cached_by_source_total", 16, source="l1")
    counters.inc("prompt_tokens_cached_by_source_total", 3, source="l2")
    values = {sample.labels: sample.value for sample in counters.snapshot()}
    assert values == {("l1",): 32.0, ("l2",): 3.0}


def test_gauges_keep_the_last_value() -> None:
    counters = Counters()
    counters.set("num_requests_running", 5)
    counters.set("num_requests_running", 2)
    assert [sample.value for sample in counters.snapshot()] == [2]


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("no_such_metric", {}),
        ("num_requests_running", {}),
        ("steps_total", {}),
        ("steps_total", {"rank": "0", "x": ""}),
    ],
)
def test_a_counter_with_a_wrong_name_or_labels_is_refused(name: str, labels: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=name):
        Counters().inc(name, **labels)


def test_counters_never_fall() -> None:
    with pytest.raises(ValueError, match="cannot fall"):
        Counters().inc("generation_tokens_total", -1)


def test_counters_and_only_counters_end_in_total() -> None:
    assert all(name.endswith("_total") == (metric.kind.value == "counter") for name, metric in METRICS.items())
