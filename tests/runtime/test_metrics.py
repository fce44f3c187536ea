from raydix.runtime.metrics import METRICS


def test_counters_and_only_counters_end_in_total() -> None:
    assert all(
        name.endswith("_total") == (metric.kind.value == "counter")
        for name, metric in METRICS.items()
    )
