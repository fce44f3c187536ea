"""Simulated engines that compute prompts for others, by production's own decisions."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from raydix.runtime.config.policies import EngineRole
from raydix.runtime.foresight.simulator.clients import Clients, WrongAnswer
from raydix.runtime.foresight.simulator.profile import CopyTimes
from raydix.runtime.foresight.simulator.requests import ClientRequest
from raydix.runtime.foresight.simulator.simulation import (
    KillKind,
    Outcome,
    Service,
    Simulation,
)
from raydix.runtime.foresight.simulator.whole_engine import SimulatedEngine
from raydix.runtime.foresight.simulator.world import Rules
from raydix.runtime.messages.client import FinishReason, RequestDelta
from raydix.runtime.messages.routing import NodeReport
from raydix.runtime.routing.node import Node
from raydix.runtime.scheduler.events import SendTokens
from raydix.runtime.scheduler.life.hand_overs import HandOvers
from tests.runtime.foresight.simulator.made_services import (
    PAGE_TOKENS,
    PROFILE,
    made_request,
    made_service,
)

PREFILL, DECODE, BOTH = EngineRole.PREFILL, EngineRole.DECODE, EngineRole.BOTH
LARGE = {"num_pages": (512,), "max_model_len": 2048}
NUM_BLOCKS = 40
KILLS = tuple((kind, 2) for kind in KillKind)


def service_of(way: str, **changes: Any) -> Service:
    """Two engines, or three, one of which computes prompts for the others: by pulls, or by L2."""
    made: dict[str, Any] = {"l2_pages": 2048, "scheduler": LARGE}
    match way:
        case "pulls":
            made |= {"num_nodes": 2, "num_prefill": 1, "with_pulls": True}
        case "shared l3":
            made |= {"num_nodes": 2, "num_prefill": 1, "with_pulls": True, "has_storage": True}
        case "one l2":
            made |= {"roles": (PREFILL, DECODE)}
        case "equals":
            made |= {"num_nodes": 2, "with_pulls": True}
        case "all ways":
            made |= {"num_nodes": 2, "roles": (PREFILL, BOTH), "with_pulls": True}
    return made_service(**(made | changes))


def long_prompts(num_requests: int = 24, **changes: Any) -> list[ClientRequest]:
    """Prompts that take 64 ms and share their first block, one every 150 ms."""
    made = {"num_answer_tokens": 80} | changes
    return [
        made_request(number, NUM_BLOCKS, 0.15 * number, **made) for number in range(num_requests)
    ]


def simulate(
    service: Service, requests: Sequence[ClientRequest], seed: int = 0
) -> tuple[Outcome, Simulation]:
    """Run it with all invariants proved every few events."""
    rules = Rules(seed=seed, check_interval=17)
    simulation = Simulation(service, PROFILE, requests, rules)
    return simulation.run(), simulation


def engines_of(simulation: Simulation) -> dict[EngineRole, SimulatedEngine]:
    """An engine of each role."""
    found = [engine for node in simulation.nodes for engine in node.engines]
    assert all(engine.scheduler.core is not None for engine in found)
    return {engine.role: engine for engine in found}


def num_computed(engine: SimulatedEngine) -> int:
    """The tokens of prompts that an engine has computed, whyever."""
    assert engine.scheduler.core is not None
    stats = engine.scheduler.core.stats()
    return sum(value for name, value in stats.items() if name.startswith("prompt_tokens_computed:"))


@pytest.mark.parametrize("way", ["pulls", "shared l3", "one l2"])
def test_decodes_do_not_wait_for_prompts_that_are_computed_apart(way: str) -> None:
    apart, simulation = simulate(service_of(way), long_prompts())
    equal, _ = simulate(service_of("equals"), long_prompts())

    assert apart.failures == equal.failures == {}
    assert apart.num_handed_over > 18
    assert equal.num_handed_over == 0
    assert apart.gap_s["p99"] < 0.5 * equal.gap_s["p99"]
    assert apart.first_token_s["p50"] < 1.2 * equal.first_token_s["p50"]
    assert 0 < apart.hand_over_s["p50"] < 0.03
    # What one engine has computed the other one computes no more, but for the ends of prompts.
    decode = engines_of(simulation)[DECODE if way == "one l2" else BOTH]
    whole = len(long_prompts()) - apart.num_handed_over
    assert num_computed(decode) < whole * NUM_BLOCKS * PAGE_TOKENS + 24 * 2 * PAGE_TOKENS


def test_what_has_one_token_is_not_split() -> None:
    outcome, _ = simulate(service_of("pulls"), long_prompts(8, num_answer_tokens=1))
    assert outcome.num_handed_over == 0
    assert outcome.failures == {}


def test_nothing_is_split_where_pages_cannot_come() -> None:
    outcome, _ = simulate(service_of("pulls", with_pulls=False), long_prompts())
    assert outcome.num_handed_over == 0
    assert outcome.failures == {}


def test_a_slow_link_between_nodes_ends_hand_overs() -> None:
    slow = PROFILE.model_copy(update={"pull": CopyTimes(fixed_s=0.2, bytes_per_s=1e6)})
    requests = long_prompts(40)
    quick, slowly = (
        Simulation(service_of("pulls"), profile, requests, Rules()).run()
        for profile in (PROFILE, slow)
    )
    # The first ones show what it takes.
    assert 0 < slowly.num_handed_over < 0.75 * quick.num_handed_over


def test_pulls_that_are_given_up_show_that_others_would_be_given_up_too() -> None:
    # Whoever decides by hand-overs alone sees some from each of the four nodes for prefill: 28.
    slow = PROFILE.model_copy(update={"pull": CopyTimes(fixed_s=0.2, bytes_per_s=1e6)})
    service = service_of("pulls", num_nodes=5, num_prefill=4)
    outcome = Simulation(service, slow, long_prompts(40), Rules()).run()
    assert 0 < outcome.num_handed_over < 12


def nothing_is_held(simulation: Simulation) -> None:
    """The law: a while after the last answer no page is reserved or leased, and nobody leaves."""
    world = simulation._world
    end_s = world.now_s + 60.0
    world.clock.run(lambda: world.now_s >= end_s)
    for node in simulation.nodes:
        node.check()
        for engine in node.engines:
            assert engine.scheduler.core is not None, "back by now"
            stats = engine.scheduler.core.stats()
            assert stats["l1_reserved_pages"] == 0
            assert stats["l1_locked_pages"] == 0
            assert not engine.scheduler.core._requests.leaving


@pytest.mark.part
@pytest.mark.parametrize("way", ["pulls", "shared l3", "one l2", "all ways"])
@pytest.mark.parametrize("seed", [0, 2, 3])
def test_whoever_dies_in_a_hand_over_no_token_is_lost_and_nothing_is_held(
    way: str, seed: int
) -> None:
    requests = long_prompts(60)
    outcome, simulation = simulate(service_of(way, kills=KILLS), requests, seed)

    assert outcome.failures == {}
    assert outcome.answer_tokens == 80 * len(requests)
    assert outcome.num_handed_over > 0
    assert outcome.num_asked_again > 0
    nothing_is_held(simulation)


def test_equal_seeds_give_equal_figures() -> None:
    service = service_of("all ways", kills=KILLS)
    told = [simulate(service, long_prompts(), seed)[0].figures() for seed in (1, 1, 2)]
    assert told[0] == told[1] != told[2]


def an_end_elsewhere_is_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: who is told to go on elsewhere takes it for the end of the answer."""
    hear = Clients._hear

    def hear_end(self: Clients, said: RequestDelta | SendTokens) -> None:
        if isinstance(said, RequestDelta) and said.finished is FinishReason.HANDED_OVER:
            said = replace(said, finished=FinishReason.LENGTH)
        hear(self, said)

    monkeypatch.setattr(Clients, "_hear", hear_end)


def test_a_hand_over_that_is_taken_for_an_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    an_end_elsewhere_is_an_end(monkeypatch)
    with pytest.raises(WrongAnswer):
        simulate(service_of("pulls"), long_prompts())


def test_a_hand_over_that_waits_for_no_page_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: engines let requests go as soon as they have their first token."""

    def tell(self: HandOvers, now_s: float) -> None:
        self.end_all()

    monkeypatch.setattr(HandOvers, "tell", tell)
    with pytest.raises(AssertionError):
        test_decodes_do_not_wait_for_prompts_that_are_computed_apart("pulls")


def test_engines_that_say_nothing_of_their_l2_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: no engine knows another one of its L2, so that nothing is handed over."""

    def shares_l2(self: Node, other: Node) -> bool:
        return False

    monkeypatch.setattr(Node, "shares_l2", shares_l2)
    with pytest.raises(AssertionError):
        test_decodes_do_not_wait_for_prompts_that_are_computed_apart("one l2")


def test_reports_tell_the_role_of_each_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, set[EngineRole]] = {}
    hear = Node.hear

    def note(self: Node, report: NodeReport, now_s: float) -> None:
        told.setdefault(self.name, set()).add(report.role)
        hear(self, report, now_s)

    monkeypatch.setattr(Node, "hear", note)
    simulate(service_of("all ways"), long_prompts(2))
    assert told == {
        "node 0 engine 0": {PREFILL},
        "node 0 engine 1": {BOTH},
        "node 1 engine 0": {PREFILL},
        "node 1 engine 1": {BOTH},
    }
