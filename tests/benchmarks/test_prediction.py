"""What the simulator predicts of an engine is what real actors around a sleeping model find."""

from pathlib import Path

from benchmarks.prediction import Point, compare, figures_of
from benchmarks.simulator import measure
from raydix.runtime.foresight.traces import read_trace

TRACE = Path(__file__).parents[2] / "benchmarks" / "traces" / "conversation.jsonl.gz"


def test_hits_of_each_tier_are_within_two_points() -> None:
    point = Point(
        trace="agentic", times_l1=5.6, policy="write_through", has_l3=True, num_requests=60
    )
    shares = compare(point)
    assert all(figure.is_met for figure in figures_of(point, shares))
    assert shares["l1"][1] > 20
    assert sum(found for _, found in shares.values()) > 99.9


def test_the_simulators_own_figures_are_made() -> None:
    figures = {figure.name: figure for figure in measure(read_trace(TRACE)[:8], 4)}
    assert figures["speed_of_one_for_eight"].value > 1.5
    assert figures["points_of_one_for_eight"].is_met
