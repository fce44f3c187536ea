"""The search tries few sizes and finds the smallest that keeps what users are promised."""

import pytest

from raydix.errors import BadRequest
from raydix.runtime.foresight.plan.fleet import (
    Fleet,
    Target,
    Trial,
    fleet_of,
    next_step,
    parse_target,
    search,
    smallest,
)
from raydix.runtime.foresight.simulator.simulation import Outcome, Simulation
from tests.runtime.foresight.simulator.made_services import PROFILE, made_service, made_sessions

TTFT = parse_target("ttft_p90=2s")


def outcome(ttft_s: float | None, tpot_s: float | None = 0.01, failed: int = 0) -> Outcome:
    def times(value: float | None) -> dict[str, float]:
        return {} if value is None else dict.fromkeys(("p50", "p90", "p99"), value)

    return Outcome(
        num_requests=10,
        failures={"Overloaded": failed} if failed else {},
        prompt_tokens={"l1": 3, "computed": 7},
        answer_tokens=20,
        num_cut_answers=0,
        first_token_s=times(ttft_s),
        next_token_s=times(tpot_s),
        duration_s=5.0,
        num_asked_again=0,
        requests_by_engine={},
        gap_s={},
        num_handed_over=0,
        hand_over_s={},
        num_events=1,
    )


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("ttft_p90=2s", Target(what="ttft", percentile="p90", seconds=2.0)),
        ("ttft_p50=300ms", Target(what="ttft", percentile="p50", seconds=0.3)),
        ("ttft_p99=1.5", Target(what="ttft", percentile="p99", seconds=1.5)),
        ("tpot=20ms", Target(what="tpot", percentile="p50", seconds=0.02)),
    ],
)
def test_a_target_is_read_as_people_write_it(text: str, target: Target) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize(
    "text",
    ["", "ttft", "ttft=2s", "ttft_p90", "ttft_p90=", "ttft_p90=-1s", "ttft_p90=0", "ttft_p90=2h"]
    + ["ttft_p95=2s", "itl_p50=2s", "ttft_p90=nan", "ttft_p90=inf", "ttft_p90=s", "tpot_=1"],
)
def test_what_is_no_target_is_refused_with_what_one_looks_like(text: str) -> None:
    with pytest.raises(BadRequest, match=r"--slo is .*expected a percentile.*ttft_p90=2s"):
        parse_target(text)


def test_a_node_is_filled_before_there_is_another() -> None:
    sizes = [fleet_of(step, 4, 2) for step in range(1, 7)]
    assert [each.num_nodes for each in sizes] == [1, 1, 1, 1, 2, 3]
    assert [each.num_ranks for each in sizes] == [2, 4, 6, 8, 16, 24]


@pytest.mark.parametrize("max_lanes", [1, 3, 8])
@pytest.mark.parametrize("max_nodes", [1, 2, 16, 100])
def test_the_smallest_that_is_enough_is_found_by_few_trials(max_lanes: int, max_nodes: int) -> None:
    num_steps = max_lanes + max_nodes - 1
    for needed in range(1, num_steps + 2):
        tried: dict[int, bool] = {}
        while (step := next_step(tried, num_steps)) is not None:
            assert step not in tried
            assert 1 <= step <= num_steps
            tried[step] = step >= needed
        found = min((each for each, is_enough in tried.items() if is_enough), default=None)
        assert found == (needed if needed <= num_steps else None)
        assert len(tried) <= 2 * num_steps.bit_length()


def test_a_service_that_refuses_requests_is_not_enough_however_quick() -> None:
    fleet = Fleet(num_nodes=1, lanes_per_node=1)
    is_enough = {
        given: Trial(fleet=fleet, outcome=given_outcome, targets=(TTFT,)).is_enough
        for given, given_outcome in {
            "kept": outcome(2.0),
            "late": outcome(2.1),
            "refused": outcome(0.1, failed=1),
            "nobody answered": outcome(None),
        }.items()
    }
    assert is_enough == {"kept": True, "late": False, "refused": False, "nobody answered": False}


def test_where_answers_are_one_token_there_is_no_time_between_tokens_to_keep() -> None:
    tpot = parse_target("tpot_p99=1ms")
    with pytest.raises(BadRequest, match=r"tpot_p99.*no answer has two tokens"):
        tpot.require_times(outcome(1.0, None))
    assert not tpot.is_kept(outcome(1.0, None))
    tpot.require_times(outcome(1.0, 0.01))
    assert not tpot.is_kept(outcome(1.0, 0.01))
    tpot.require_times(outcome(None, None, failed=10))
    TTFT.require_times(outcome(1.0, None))


def test_all_targets_have_to_be_kept() -> None:
    def simulate(fleet: Fleet) -> Outcome:
        return outcome(4.0 / fleet.num_ranks, 0.3 / fleet.num_ranks)

    targets = (TTFT, parse_target("tpot=0.05"))
    trials = list(search(simulate, targets, max_nodes=3, max_lanes_per_node=4))
    found = smallest(trials)
    assert found is not None
    assert (found.fleet.num_nodes, found.fleet.num_ranks) == (2, 8)
    assert {trial.fleet.num_ranks for trial in trials} == {1, 2, 4, 8, 12}
    assert found.figures()["is_enough"]
    assert list(search(simulate, (parse_target("tpot=1ms"),), max_nodes=1, max_lanes_per_node=1))


def test_more_ranks_answer_a_crowd_sooner() -> None:
    # All at once: one rank has a queue.
    crowd = made_sessions(24, 1, gap_s=0.0)

    def simulate(fleet: Fleet) -> Outcome:
        service = made_service(
            num_nodes=fleet.num_nodes, scheduler={"num_lanes": fleet.lanes_per_node}
        )
        return Simulation(service, PROFILE, crowd).run()

    alone = simulate(fleet_of(1, 2)).first_token_s["p90"]
    target = Target(what="ttft", percentile="p90", seconds=0.7 * alone)
    found = smallest(list(search(simulate, (target,), max_nodes=4, max_lanes_per_node=2)))
    assert found is not None
    assert found.fleet.num_ranks > 1
