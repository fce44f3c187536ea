"""What the simulator predicts of an engine is what real actors around a sleeping model find."""

from pathlib import Path

import pytest

from benchmarks import prediction_gpu
from benchmarks.engine.engines import DENSE_TINY, Options
from benchmarks.prediction import Point, compare, figures_of
from benchmarks.simulator import measure
from raydix.runtime.foresight.traces import read_trace

TRACE = Path(__file__).parents[2] / "benchmarks" / "traces" / "conversation.jsonl.gz"


MAX_POINTS_OF_FEW = 10.0
"""A page's tier is at times a matter of milliseconds. Of 60 requests that is points; of the many
that `benchmarks.prediction` asks it is not.
"""


def test_hits_are_as_predicted() -> None:
    point = Point(
        trace="agentic", times_l1=5.6, policy="write_through", has_l3=True, num_requests=60
    )
    shares = compare(point)
    figures = {figure.name: figure for figure in figures_of(point, shares)}
    assert figures[f"{point.name}_computed"].is_met
    assert max(figure.value for figure in figures.values()) <= MAX_POINTS_OF_FEW
    assert shares["l1"][1] > 20
    assert sum(found for _, found in shares.values()) > 99.9


def test_hits_on_several_nodes_are_as_predicted() -> None:
    point = Point(
        trace="agentic",
        times_l1=5.6,
        policy="write_through",
        has_l3=False,
        num_requests=80,
        num_nodes=2,
    )
    shares = compare(point)
    predicted, found = shares["computed"]
    assert abs(predicted - found) <= MAX_POINTS_OF_FEW
    assert shares["l1"][1] > 20
    assert sum(found for _, found in shares.values()) > 99.9


def test_the_simulators_own_figures_are_made() -> None:
    figures = {figure.name: figure for figure in measure(read_trace(TRACE)[:8], 4)}
    assert figures["speed_of_one_for_eight"].value > 1.5
    assert figures["points_of_one_for_eight"].is_met


async def test_times_of_a_real_model_are_predicted_and_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prediction_gpu, "TIMES_L1", (5.6,))
    told: list[str] = []
    options = Options(device="cpu", is_tiny=True)
    figures = await prediction_gpu.measure(options, prediction_gpu.TINY, DENSE_TINY, told.append)
    found = {figure.name: figure for figure in figures}
    shares = [found[f"5.6 times L1, {tier}"].baseline for tier in prediction_gpu.TIERS]
    assert sum(share for share in shares if share is not None) > 99.9
    assert shares[0] is not None
    assert shares[0] > 20
    for tier in prediction_gpu.TIERS:
        assert found[f"5.6 times L1, {tier}: off"].value <= MAX_POINTS_OF_FEW
    assert found["5.6 times L1, TTFT p50"].value > 0
    assert sum("predicted / found" in line for line in told) == 1
