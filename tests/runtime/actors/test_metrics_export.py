"""What Ray's metrics are told of an actor's samples."""

import pytest

from raydix.runtime.actors import metrics_export
from raydix.runtime.actors.metrics_export import MetricsExporter
from raydix.runtime.metrics import Distribution, Figure, Sample, Unit, counter, gauge, histogram

ENDED = counter("ended_total", Unit.COUNT, "Ended.", Figure("ended"), labels=("why",))
WAITING = gauge("waiting", Unit.COUNT, "Waiting.", Figure("waiting"))
TOOK = histogram("took_seconds", (0.1, 1.0), "Took.", Figure("took"))

Told = list[tuple[str, float, dict[str, str]]]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """Everything that was recorded: name, value, tags."""
    records: Told = []

    class FakeMetric:
        """Stands for Ray's counters and gauges; refuses what they refuse."""

        def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
            self._name = name
            self._tag_keys = tag_keys

        def _record(self, value: float, tags: dict[str, str]) -> None:
            assert set(tags) == set(self._tag_keys)
            records.append((self._name, value, tags))

        def inc(self, value: float, tags: dict[str, str]) -> None:
            assert value > 0
            self._record(value, tags)

        set = _record

    monkeypatch.setattr(metrics_export, "Counter", FakeMetric)
    monkeypatch.setattr(metrics_export, "Gauge", FakeMetric)
    return records


def test_a_counter_is_told_as_zero_once_and_then_by_what_it_grew(told: Told) -> None:
    exporter = MetricsExporter("e")
    for value in (0.0, 0.0, 3.0, 3.0, 5.0):
        exporter.publish(Sample(ENDED, ("stop",), value))

    tags = {"why": "stop", "engine": "e"}
    assert told == [("raydix_ended_total", grown, tags) for grown in (0.0, 3.0, 2.0)]


def test_a_gauge_is_told_each_time_or_ray_would_forget_it(told: Told) -> None:
    exporter = MetricsExporter("e")
    for _ in range(2):
        exporter.publish(Sample(WAITING, (), 4.0))

    assert told == [("raydix_waiting", 4.0, {"engine": "e"})] * 2


def test_a_histogram_is_told_in_prometheus_parts_with_its_exact_sum(told: Told) -> None:
    MetricsExporter("e").publish(Sample(TOOK, (), Distribution((0.1, 1.0), (2, 1, 1), 7.65)))

    buckets = [("0.1", 2), ("1.0", 3), ("+Inf", 4)]
    assert told == [
        *(("raydix_took_seconds_bucket", n, {"engine": "e", "le": le}) for le, n in buckets),
        ("raydix_took_seconds_count", 4, {"engine": "e"}),
        ("raydix_took_seconds_sum", 7.65, {"engine": "e"}),
    ]
