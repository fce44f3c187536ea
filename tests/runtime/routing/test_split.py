"""A prompt is computed apart from its output where that is predicted to make all wait less."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from raydix.ids import NodeId, RequestId
from raydix.runtime.config.policies import EngineRole
from raydix.runtime.messages.kv_events import Tier
from raydix.runtime.messages.line import Line
from raydix.runtime.routing.choice import Place
from raydix.runtime.routing.events import NodeGone, NodeReported, Route
from raydix.runtime.routing.ingress import Ingress
from raydix.runtime.routing.policies import RoundRobin, RoutingPolicy, SessionHash, SoonestNode
from raydix.runtime.routing.split import Split, TakeOver, choose_split
from tests.runtime.routing.told import (
    LOAD_PAGE_S,
    PAGE_SIZE,
    TOKEN_S,
    asking,
    decodes,
    found,
    prefills,
    reported,
    stored,
)

LONG, SHORT = range(100), range(1)


def place(own_s: float, caused_s: float = 0.0) -> Place:
    return Place(
        wait_s=0.0,
        own_s=own_s,
        caused_s=caused_s,
        is_preferred=False,
        num_near_pages=0,
        num_requests=0,
    )


def split(
    first: int, own_s: float, hand_over_s: float, computed_s: float = 0.0, anew_s: float = 9.0
) -> Split:
    taken = TakeOver(foreseen_s=0.0, computed_s=computed_s, anew_s=anew_s, num_decoding=2)
    return Split(
        first=NodeId(first),
        then=NodeId(9),
        place=place(own_s),
        take_over=taken,
        hand_over_s=hand_over_s,
    )


def ingress_of(*reports: NodeReported, policy: RoutingPolicy | None = None) -> Ingress:
    ingress = Ingress(policy or SoonestNode())
    for each in reports:
        ingress.handle(found(each.node), 0.0)
        ingress.handle(each, 0.0)
    return ingress


def sent(
    ingress: Ingress, pages: Iterable[int], name: str = "a", *, may_be_split: bool = True
) -> Route:
    asked = replace(asking(name, pages), may_be_split=may_be_split)
    route = ingress.route(asked, 0.0)
    ingress.check()
    assert route is not None
    return route


def nodes_of(route: Route) -> tuple[int, int | None]:
    return route.node, None if route.then is None else route.then.node


def test_the_cheapest_split_is_taken_if_all_wait_less_than_for_the_whole() -> None:
    splits = [split(1, 2.0, 0.5), split(2, 1.0, 0.6), split(3, 1.5, 0.2)]
    assert choose_split(place(1.0, caused_s=1.0), splits) is splits[1]


@pytest.mark.parametrize("whole_s", [1.6, 1.0])
def test_what_gains_nothing_stays_whole(whole_s: float) -> None:
    assert choose_split(place(whole_s), [split(2, 1.0, 0.6)]) is None
    assert choose_split(place(whole_s), []) is None


def test_what_others_are_delayed_by_going_on_counts() -> None:
    assert choose_split(place(1.0), [split(1, 0.2, 0.3, computed_s=0.3)]) is None
    assert choose_split(place(1.0), [split(1, 0.2, 0.3, computed_s=0.2)]) is not None


def test_what_takes_as_long_as_computing_it_anew_was_computed_anew() -> None:
    assert choose_split(place(1.0), [split(1, 0.2, 0.3, anew_s=0.31)]) is not None
    assert choose_split(place(1.0), [split(1, 0.2, 0.3, anew_s=0.3)]) is None, "0.6 s of two"


def test_a_long_prompt_beside_others_that_decode_is_split() -> None:
    ingress = ingress_of(prefills(0), decodes(1, num_decoding=20))

    route = sent(ingress, LONG)

    assert nodes_of(route) == (0, 1)
    assert route.header.endswith(", decode=n1")
    assert route.first_token_s == pytest.approx(100.5 * PAGE_SIZE * TOKEN_S)


def test_what_disturbs_nobody_is_not_split() -> None:
    ingress = ingress_of(prefills(0), decodes(1, num_decoding=0))
    assert nodes_of(sent(ingress, LONG)) == (1, None)


def test_a_short_prompt_is_not_split() -> None:
    slow = Line(0.5, LOAD_PAGE_S)
    ingress = ingress_of(prefills(0, load=slow), decodes(1, num_decoding=20))
    assert nodes_of(sent(ingress, SHORT)) == (1, None)
    assert nodes_of(sent(ingress, LONG, "b")) == (0, 1)


def test_what_waits_where_a_prompt_goes_on_is_done_while_it_is_computed() -> None:
    first, busy = prefills(0), decodes(1, num_decoding=20, busy_s=1.5)
    route = sent(ingress_of(first, busy, decodes(2, num_decoding=21)), LONG)
    assert nodes_of(route) == (0, 1)
    assert route.first_token_s > 1.5
    busier = decodes(1, num_decoding=20, busy_s=10.0)
    assert nodes_of(sent(ingress_of(first, busier, decodes(2, num_decoding=21)), LONG)) == (0, 2)


def long_prompt(number: int) -> range:
    return range(1000 * (1 + number), 1000 * (1 + number) + 100)


def handed_over(ingress: Ingress, name: str, took_s: float, at_s: float) -> None:
    """What was sent with this name goes on, and has its second token so long after its first."""
    rest = RequestId(f"rest of {name}")
    ingress.note_first_token(RequestId(name), at_s)
    ingress.go_on(RequestId(name), NodeId(1), rest)
    assert ingress.note_next_token(rest, at_s + took_s) == pytest.approx(took_s)


def test_where_hand_overs_were_slow_prompts_stay_whole_until_that_is_forgotten() -> None:
    reports = prefills(0), decodes(1, num_decoding=2)
    ingress = ingress_of(*reports)
    for number in range(6):
        asked = replace(asking(f"r{number}", long_prompt(number)), may_be_split=True)
        route = ingress.route(asked, number)
        assert route is not None
        if route.then is None:
            break
        handed_over(ingress, f"r{number}", 12.0, number)
    assert number == 3, "three slow ones are believed"
    ingress.release(RequestId("r3"), 3.0)
    for each in reports:
        ingress.handle(each, 600.0)
    again = ingress.route(replace(asking("again", long_prompt(9)), may_be_split=True), 600.0)
    assert again is not None
    assert nodes_of(again) == (0, 1)


def test_where_hand_overs_were_quick_prompts_are_split_that_gained_nothing() -> None:
    slow = Line(0.5, LOAD_PAGE_S)
    ingress = ingress_of(prefills(0, load=slow), decodes(1, num_decoding=20))
    assert nodes_of(sent(ingress, range(400, 410))) == (1, None)
    for number in range(6):
        sent(ingress, long_prompt(number), f"r{number}")
        handed_over(ingress, f"r{number}", 0.01, 0.0)
    assert nodes_of(sent(ingress, range(500, 510), "short")) == (0, 1)


def test_what_has_ended_in_mid_hand_over_has_no_second_token() -> None:
    ingress = ingress_of(prefills(0), decodes(1, num_decoding=20))
    sent(ingress, LONG)
    ingress.note_first_token(RequestId("a"), 1.0)
    ingress.go_on(RequestId("a"), NodeId(1), RequestId("rest"))
    ingress.release(RequestId("rest"), 2.0)
    assert ingress.note_next_token(RequestId("rest"), 50.0) is None


def test_nothing_is_to_go_on_where_as_many_wait_as_may() -> None:
    ingress = ingress_of(prefills(0), decodes(1, num_decoding=20, is_full=True))
    assert nodes_of(sent(ingress, LONG)) == (1, None), "which refuses it"


def test_a_cached_prompt_is_not_split() -> None:
    ingress = ingress_of(prefills(0), decodes(1, num_decoding=20))
    ingress.handle(stored(1, LONG), 0.0)
    ingress.handle(stored(1, LONG, Tier.L2, None), 0.0)
    assert nodes_of(sent(ingress, LONG)) == (1, None)


def test_those_that_are_about_to_come_count_as_decoding() -> None:
    ingress = ingress_of(prefills(0), decodes(1, num_decoding=2), decodes(2, num_decoding=2))
    thens = [sent(ingress, range(n, n + 100), f"r{n}").then for n in range(0, 1600, 100)]
    assert {each.node for each in thens if each is not None} == {1, 2}


def test_who_has_its_first_token_is_expected_no_more() -> None:
    ingress = ingress_of(prefills(0), decodes(1, num_decoding=20))
    sent(ingress, LONG)
    assert ingress._nodes[NodeId(1)]._expected == {"a"}
    ingress.note_first_token(RequestId("a"), 1.0)
    assert not ingress._nodes[NodeId(1)]._expected


def test_who_was_sent_to_a_node_that_is_gone_is_expected_nowhere() -> None:
    ingress = ingress_of(prefills(0), decodes(1, num_decoding=20))
    sent(ingress, LONG)
    assert ingress.handle(NodeGone(node=NodeId(0)), 0.0) == ("a",)
    assert not ingress._nodes[NodeId(1)]._expected
    assert nodes_of(sent(ingress, LONG)) == (1, None)


def test_whoever_is_left_serves_whole_requests() -> None:
    ingress = ingress_of(prefills(0), decodes(1, num_decoding=20))
    ingress.handle(NodeGone(node=NodeId(1)), 0.0)
    assert nodes_of(sent(ingress, LONG)) == (0, None)


def test_without_a_way_for_its_pages_a_prompt_is_not_split() -> None:
    elsewhere = decodes(1, num_decoding=20, l2="two")
    assert nodes_of(sent(ingress_of(prefills(0), elsewhere), LONG)) == (1, None)
    without = decodes(1, num_decoding=20, l2=None)
    assert nodes_of(sent(ingress_of(prefills(0, l2=None), without), LONG)) == (1, None)
    pulls = decodes(1, num_decoding=20, l2="two", pull=Line(0.0, LOAD_PAGE_S))
    assert nodes_of(sent(ingress_of(prefills(0), pulls), LONG)) == (0, 1)


def test_nodes_of_other_page_sizes_do_not_go_on_for_each_other() -> None:
    ingress = ingress_of(prefills(0, page_size=32), decodes(1, num_decoding=20))
    assert nodes_of(sent(ingress, LONG)) == (1, None)


def test_a_single_token_is_computed_where_it_disturbs_nobody() -> None:
    ingress = ingress_of(prefills(0), decodes(1, num_decoding=20))
    asked = replace(asking("a", LONG), is_one_token=True)
    route = ingress.route(asked, 0.0)
    assert route is not None
    assert nodes_of(route) == (0, None)


def test_an_output_that_has_begun_goes_on_whole_at_no_node_for_prefill() -> None:
    ingress = ingress_of(prefills(0), decodes(1, num_decoding=20))
    assert nodes_of(sent(ingress, LONG, may_be_split=False)) == (1, None)


@pytest.mark.parametrize("policy", [SessionHash, RoundRobin])
def test_other_policies_mind_no_roles(policy: type[RoutingPolicy]) -> None:
    ingress = ingress_of(prefills(0), decodes(1, num_decoding=20), policy=policy())
    routes = [sent(ingress, range(n, n + 100), f"r{n}") for n in range(0, 1600, 100)]
    assert {nodes_of(each) for each in routes} == {(0, None), (1, None)}


def test_without_a_node_for_prefill_those_who_decode_change_nothing() -> None:
    busy, idle = reported(0, num_decoding=50, role=EngineRole.BOTH), reported(1, busy_s=0.1)
    assert nodes_of(sent(ingress_of(busy, idle), LONG)) == (0, None)
