"""The loads at which scheduling policies are compared."""

import pytest

from benchmarks.cores.queue_loads import QueueRun, at_rate, capacity_of, run_queue
from raydix.runtime.config.policies import SchedulingPolicy
from raydix.runtime.foresight.traces import TraceRequest
from raydix.runtime.foresight.workloads import WORKLOADS, make_trace


@pytest.fixture(scope="module")
def trace() -> list[TraceRequest]:
    return make_trace(WORKLOADS["chat"], 3)[:30]


def test_a_trace_at_another_rate_keeps_its_order_and_its_pauses_in_proportion(
    trace: list[TraceRequest],
) -> None:
    slow, quick = at_rate(trace, 1.0), at_rate(trace, 10.0)
    assert slow[-1].arrival_s == pytest.approx(30.0)
    assert [each.arrival_s for each in slow] == pytest.approx(
        [10 * each.arrival_s for each in quick]
    )


def test_above_capacity_requests_wait_longer_than_below(trace: list[TraceRequest]) -> None:
    capacity = capacity_of(trace)
    below, above = (
        run_queue(QueueRun(policy=SchedulingPolicy.FCFS, load=load, capacity=capacity), trace)
        for load in (0.2, 5.0)
    )
    assert above.p50_s > below.p50_s
    assert below.p50_s <= below.p90_s <= below.longest_s
