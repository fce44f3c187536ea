"""A trace on simulated nodes: what it finds in which tier, and that nothing dies with a process."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from raydix.errors import AccountingError
from raydix.runtime.foresight.simulator.clients import WrongAnswer
from raydix.runtime.foresight.simulator.device import LaneDevice
from raydix.runtime.foresight.simulator.requests import ClientRequest
from raydix.runtime.foresight.simulator.simulation import (
    KillKind,
    Outcome,
    Service,
    Simulation,
    Stuck,
)
from raydix.runtime.foresight.simulator.world import Rules
from raydix.runtime.messages.client import SubmitRequest
from raydix.runtime.routing.policies import RoundRobin
from tests.runtime.foresight.simulator.made_services import (
    PAGE_TOKENS,
    PROFILE,
    made_request,
    made_service,
    made_sessions,
)

KILLS = tuple((kind, 3) for kind in KillKind)


def simulate(service: Service, requests: Sequence[ClientRequest], **rules: Any) -> Outcome:
    """Run it with all invariants proved every few events."""
    return Simulation(service, PROFILE, requests, Rules(check_interval=17, **rules)).run()


def test_a_prompt_that_comes_again_is_found_in_l1() -> None:
    outcome = simulate(made_service(), [made_request(1, 6, 0.0), made_request(1, 6, 5.0)])
    # The last token is computed in any case.
    assert outcome.prompt_tokens["l1"] == 6 * PAGE_TOKENS - 1
    assert outcome.prompt_tokens["computed"] == 6 * PAGE_TOKENS + 1
    assert outcome.answer_tokens == 12
    assert outcome.failures == {}


def test_what_l1_has_given_up_comes_from_l2() -> None:
    between = [made_request(session, 20, 1.0 + session) for session in range(2, 6)]
    requests = [made_request(1, 6, 0.0), *between, made_request(1, 6, 20.0)]
    outcome = simulate(made_service(), requests)
    assert outcome.prompt_tokens["l2"] >= 4 * PAGE_TOKENS
    assert outcome.prompt_tokens["l3"] == 0


def test_what_a_node_has_stored_is_read_from_l3_by_another() -> None:
    service = made_service(num_nodes=2, has_storage=True, policy=RoundRobin())
    outcome = simulate(service, [made_request(1, 12, 0.0), made_request(1, 12, 5.0)])
    assert outcome.requests_by_engine == {"node 0": 1, "node 1": 1}
    assert outcome.prompt_tokens["l3"] >= 10 * PAGE_TOKENS


def test_what_a_node_has_in_l2_is_pulled_by_another() -> None:
    service = made_service(num_nodes=2, with_pulls=True, policy=RoundRobin())
    outcome = simulate(service, [made_request(1, 12, 0.0), made_request(1, 12, 5.0)])
    assert outcome.prompt_tokens["peer"] >= 10 * PAGE_TOKENS


def test_requests_go_where_their_prefixes_are() -> None:
    service = made_service(num_nodes=3)
    by_time = simulate(service, made_sessions(6, 4, gap_s=0.3))
    in_turn = simulate(replace(service, policy=RoundRobin()), made_sessions(5, 4, gap_s=0.3))
    assert by_time.hit_fraction > in_turn.hit_fraction


def test_equal_seeds_give_equal_bytes_and_others_do_not() -> None:
    service = made_service(num_nodes=2, has_storage=True, kills=KILLS)
    told = [
        json.dumps(simulate(service, made_sessions(5, 3), seed=seed).figures())
        for seed in (1, 1, 2)
    ]
    assert told[0] == told[1] != told[2]


@pytest.mark.parametrize("seed", range(4))
def test_kills_of_all_that_can_die_cost_no_token(seed: int) -> None:
    service = made_service(
        num_nodes=3,
        has_storage=seed % 2 == 0,
        with_pulls=seed > 1,
        kills=KILLS,
        scheduler={"num_lanes": 2, "ranks_per_lane": 1 + seed % 2},
    )
    requests = made_sessions(12, 4, num_answer_tokens=80)
    outcome = simulate(service, requests, seed=seed)
    assert outcome.failures == {}
    assert outcome.num_requests == len(requests)
    assert outcome.answer_tokens == 80 * len(requests)
    assert outcome.num_asked_again > 0


def test_an_answer_that_begins_anew_after_a_death_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: what a client has heard already is forgotten when it asks again."""
    earlier = property(lambda self: made_request(1, 1, 0.0).prompt(10)[:0])
    monkeypatch.setattr(SubmitRequest, "earlier_output", earlier)
    service = made_service(num_nodes=2, kills=((KillKind.ENGINE, 4),))
    with pytest.raises(WrongAnswer):
        simulate(service, made_sessions(12, 5, num_answer_tokens=60), seed=3)


def test_a_closed_loop_waits_for_the_answer() -> None:
    first = made_request(1, 6, 0.0, num_answer_tokens=100)
    following = made_request(1, 8, 0.0, follows=0, pause_s=2.0)
    simulation = Simulation(made_service(), PROFILE, [first, following])
    simulation.run()
    answer, later = simulation.clients.answers
    assert answer.ended_s is not None
    assert later.asked_s == pytest.approx(answer.ended_s + 2.0)


def test_pauses_of_days_are_waited_for() -> None:
    days = [made_request(1, 6, 0.0, follows=turn - 1, pause_s=100_000.0) for turn in (1, 2)]
    outcome = simulate(made_service(), [made_request(1, 6, 0.0), *days])
    assert outcome.num_requests == 3
    assert outcome.duration_s > 200_000.0


def test_who_is_never_answered_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: steps are never told of."""
    monkeypatch.setattr(LaneDevice, "carry_out", lambda self, plan: ())
    service = made_service(scheduler={"step_deadline_s": 1e9, "first_step_deadline_s": 1e9})
    with pytest.raises(Stuck, match="1 of 1 requests have no answer"):
        simulate(service, [made_request(1, 6, 0.0)])


def test_one_token_for_four_takes_as_long_as_four() -> None:
    requests = [made_request(1, 6, 0.0, num_answer_tokens=80)]
    profile = replace_spread()
    each, fourth = (
        Simulation(made_service(), profile, requests, Rules(tokens_per_simulated=tokens)).run()
        for tokens in (1, 4)
    )
    assert fourth.num_events < each.num_events / 2
    assert fourth.duration_s == pytest.approx(each.duration_s, rel=0.1)
    assert fourth.answer_tokens == each.answer_tokens == 80


def replace_spread() -> Any:
    """The profile without chance."""
    step = PROFILE.step.model_copy(update={"spread": 0.0})
    return PROFILE.model_copy(update={"step": step, "link_s": 0.0})


def test_a_broken_invariant_of_any_core_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(made_service(), PROFILE, [made_request(1, 3, 0.0)])
    [engine] = simulation.nodes[0].engines

    def fail() -> None:
        raise AccountingError("broken")

    assert engine.scheduler.core is not None
    monkeypatch.setattr(engine.scheduler.core, "check", fail)
    with pytest.raises(AccountingError):
        simulation.run()


@pytest.mark.parametrize("tokens_per_simulated", [1, 8])
def test_an_answer_ends_where_the_context_does(tokens_per_simulated: int) -> None:
    service = made_service(scheduler={"max_model_len": 100})
    requests = [
        made_request(1, 6, 0.0, num_answer_tokens=50),
        made_request(2, 5, 0.0, num_answer_tokens=20),
        made_request(3, 7, 0.0, num_answer_tokens=50),
    ]
    outcome = simulate(service, requests, tokens_per_simulated=tokens_per_simulated)
    assert outcome.answer_tokens == 4 + 20
    assert outcome.num_cut_answers == 1
    assert outcome.failures == {"PromptTooLong": 1}


def test_a_prompt_waits_for_one_step_of_a_plan_that_stands() -> None:
    requests = [
        made_request(session, 3, 0.0 if session < 4 else 0.04 * session, num_answer_tokens=90)
        for session in range(12)
    ]
    each, standing = (
        Simulation(
            made_service(scheduler={"max_repeats": num_repeats}), replace_spread(), requests
        ).run()
        for num_repeats in (0, 15)
    )
    assert standing.prompt_tokens == each.prompt_tokens
    assert standing.answer_tokens == each.answer_tokens
    # Without repeats another step is queued behind the one that is under way.
    assert each.first_token_s["p50"] - standing.first_token_s["p50"] > 0.001


@pytest.mark.parametrize("seed", range(3))
def test_plans_that_stand_end_with_their_engines(seed: int) -> None:
    service = made_service(scheduler={"max_repeats": 15}, num_nodes=2, kills=KILLS)
    outcome = simulate(service, made_sessions(5, 3, num_answer_tokens=30), seed=seed)
    assert outcome.failures == {}
    assert outcome.num_asked_again > 0
