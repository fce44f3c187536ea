"""The benchmark of failing storage, tiny: it measures what it says, whatever the figures are."""

import math

import pytest

from benchmarks.storage_faults import (
    Arrival,
    Pair,
    Seen,
    Setting,
    Traffic,
    hit_rate,
    measure,
    select_late,
    summarise,
)

TINY = Setting(
    requests=16,
    requests_before_fault=4,
    requests_per_s=200.0,
    grace_s=0.01,
    pairs=2,
    documents=4,
    document_pages=4,
    chunk_tokens=128,
    step_s=0.001,
    l1_pages=32,
    l2_pages=64,
    latency_s=0.0,
)


@pytest.mark.parametrize("fault", ["black_hole", "failing", "full"])
async def test_every_figure_of_a_fault_is_there(fault: str) -> None:
    figures = {figure.name: figure for figure in await measure(fault, TINY, has_bars=False)}

    assert figures["failed"].value == 0
    assert figures["p95 TTFT"].value > 0
    assert figures["hit rate before"].value > 0
    assert 0 < figures["slowest recovery of the hit rate"].value < TINY.max_recovery_s


def test_traffic_is_the_same_for_the_same_seed_alone() -> None:
    first, same, other = Traffic(TINY, 1), Traffic(TINY, 1), Traffic(TINY, 2)
    arrivals = [first.next() for _ in range(50)]

    assert arrivals == [same.next() for _ in range(50)]
    assert arrivals != [other.next() for _ in range(50)]
    assert len({arrival.prompt_seed for arrival in arrivals if not arrival.is_known}) == sum(
        not arrival.is_known for arrival in arrivals
    )


def seen(
    at_s: float, ttft_ms: float | None, *, is_known: bool = True, hit_fraction: float = 1.0
) -> Seen:
    return Seen(Arrival(at_s, 0, is_known), ttft_ms, hit_fraction)


def test_requests_count_from_the_end_of_the_grace_on() -> None:
    setting = Setting(requests_before_fault=1, grace_s=2.0)
    times = [seen(0.0, 1.0), seen(1.0, 2.0), seen(3.0, 3.0), seen(3.1, 4.0), seen(3.2, None)]

    assert select_late(times, setting) == [4.0]


def test_hit_rate_is_of_known_documents() -> None:
    mixed = [
        seen(0, 1.0, hit_fraction=0.5),
        seen(0, 1.0),
        seen(0, 1.0, is_known=False, hit_fraction=0.0),
    ]

    assert hit_rate(mixed) == 0.75


def test_bars_are_on_failures_on_all_requests_together_and_on_the_slowest_recovery() -> None:
    pair = Pair([1.2] * 10, [1.0] * 10, 1, 1.0, 0.5, math.inf)
    verdicts = {figure.name: figure.is_met for figure in summarise([pair], has_bars=True)}

    assert [name for name, is_met in verdicts.items() if not is_met] == [
        "failed",
        "p95 TTFT over that without L3",
        "slowest recovery of the hit rate",
    ]
