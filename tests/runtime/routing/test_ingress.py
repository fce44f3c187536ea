"""Requests go where their first token comes soonest, and to no node that is gone."""

import dataclasses

import pytest

from raydix.ids import NodeId, RequestId
from raydix.runtime.messages.kv_events import KvNews, Tier, TierCleared
from raydix.runtime.messages.line import Line
from raydix.runtime.routing.events import FollowingBegun, NodeGone, NodeNews, Route
from raydix.runtime.routing.ingress import Ingress
from raydix.runtime.routing.node import Node
from raydix.runtime.routing.policies import RoundRobin, RoutingPolicy, SessionHash, SoonestNode
from tests.runtime.routing.told import (
    LOAD_PAGE_S,
    PAGE_SIZE,
    TOKEN_S,
    asking,
    found,
    removed,
    reported,
    stored,
)

POLICIES: tuple[type[RoutingPolicy], ...] = (SoonestNode, SessionHash, RoundRobin)


def ingress_of(num_nodes: int = 2, policy: RoutingPolicy | None = None) -> Ingress:
    """An ingress of idle nodes."""
    ingress = Ingress(policy or SoonestNode())
    for node in range(num_nodes):
        ingress.handle(found(node), 0.0)
        ingress.handle(reported(node), 0.0)
    return ingress


def sent(ingress: Ingress, name: str, pages: range, now_s: float = 0.0, **more: str) -> Route:
    """Where a request goes, which must be somewhere."""
    route = ingress.route(asking(name, pages, **more), now_s)
    ingress.check()
    assert route is not None
    return route


def test_a_request_goes_where_its_prefix_is() -> None:
    ingress = ingress_of()
    ingress.handle(stored(1, range(10)), 0.0)

    route = sent(ingress, "a", range(12))

    assert route.node == 1
    assert route.num_cached_tokens == 10 * PAGE_SIZE
    assert route.first_token_s == pytest.approx(2.5 * PAGE_SIZE * TOKEN_S)
    assert route.header == "engine=n1, predicted_s=0.040, l1=160, l2=0, peer=0"


def test_the_last_token_is_computed_whatever_is_there() -> None:
    ingress = ingress_of(1)
    ingress.handle(stored(0, range(4)), 0.0)
    whole = dataclasses.replace(asking("a", range(4)), num_tokens=4 * PAGE_SIZE)

    route = ingress.route(whole, 0.0)

    assert route is not None
    assert route.num_cached_tokens == 3 * PAGE_SIZE


def test_pages_of_l2_cost_their_load() -> None:
    ingress = ingress_of(1)
    ingress.handle(stored(0, range(4)), 0.0)
    ingress.handle(stored(0, range(10), Tier.L2, None), 0.0)

    route = sent(ingress, "a", range(10))

    assert route.num_cached_tokens == 10 * PAGE_SIZE
    assert route.first_token_s == pytest.approx(6 * LOAD_PAGE_S + 0.5 * PAGE_SIZE * TOKEN_S)


def test_a_session_that_was_put_away_still_counts_where_it_is_kept() -> None:
    ingress = ingress_of()
    ingress.handle(stored(1, range(10)), 0.0)
    ingress.handle(stored(1, range(10), Tier.L2, None), 0.0)
    ingress.handle(removed(1, range(10)), 1.0)
    ingress.handle(reported(0), 1.0)
    ingress.handle(reported(1), 1.0)

    assert sent(ingress, "a", range(10), 1.0).node == 1


def test_a_burst_is_not_sent_to_one_node() -> None:
    ingress = ingress_of(4)

    nodes = [sent(ingress, f"r{i}", range(100 * i, 100 * i + 10)).node for i in range(8)]

    assert sorted(nodes) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_who_shares_a_prefix_that_is_being_computed_goes_there() -> None:
    ingress = ingress_of(4)

    first = sent(ingress, "a", range(50))
    second = sent(ingress, "b", range(51))

    assert second.node == first.node
    assert second.num_cached_tokens == 50 * PAGE_SIZE


def test_what_was_computed_is_known_before_its_news_come() -> None:
    ingress = ingress_of(4)
    first = sent(ingress, "a", range(50))
    ingress.note_first_token(RequestId("a"), 0.8)

    assert sent(ingress, "b", range(51), 0.8).node == first.node
    ingress.handle(reported(first.node), 0.9)
    ingress.handle(reported(first.node, num_seen=2), 1.4)
    # No news came of it: the node has not kept it.
    ingress.release(RequestId("b"), 1.4)
    ingress.handle(reported(first.node, num_seen=2), 1.9)
    assert sent(ingress, "c", range(50), 1.9).num_cached_tokens == 0


def test_a_report_takes_the_place_of_what_it_has_seen() -> None:
    ingress = ingress_of(1)
    own_s = sent(ingress, "a", range(10)).first_token_s
    assert sent(ingress, "b", range(50, 60)).first_token_s == pytest.approx(2 * own_s)

    ingress.handle(reported(0, num_seen=1, busy_s=5.0), 0.1)

    assert sent(ingress, "c", range(90, 100), 0.1).first_token_s == pytest.approx(5.0 + 2 * own_s)


def test_other_ingresses_are_taken_to_have_sent_as_much() -> None:
    ingress = ingress_of(1)
    ingress.handle(reported(0, num_ingresses=3), 0.0)
    own_s = sent(ingress, "a", range(10)).first_token_s

    # Half of what they send comes before.
    assert sent(ingress, "b", range(50, 60)).first_token_s == pytest.approx(3 * own_s)


@pytest.mark.parametrize(("num_free", "expected"), [(1, 0), (0, 0), (-99, 1)])
def test_a_node_that_has_a_prefix_is_not_waited_for_until_a_slot_is_free(
    num_free: int, expected: int
) -> None:
    ingress = ingress_of(2)
    ingress.handle(stored(0, range(100)), 0.0)
    ingress.handle(reported(0, num_free_slots=num_free, slot_s=0.05), 0.0)
    assert sent(ingress, "r", range(100)).node == expected


def test_requests_that_a_report_has_not_seen_wait_for_slots_too() -> None:
    ingress = ingress_of(2)
    for node in (0, 1):
        ingress.handle(reported(node, num_free_slots=0, slot_s=10.0), 0.0)
    routes = [sent(ingress, f"r{number}", [number]) for number in range(8)]
    assert sorted(route.node for route in routes) == [0] * 4 + [1] * 4
    waits = [round(route.first_token_s, -1) for route in routes]
    assert waits == [10.0, 10.0, 20.0, 20.0, 30.0, 30.0, 40.0, 40.0]
    # Part of it has passed by now.
    assert sent(ingress, "later", [9], 0.5).first_token_s == pytest.approx(49.5, abs=0.2)


def test_a_node_that_falls_silent_is_asked_no_more() -> None:
    ingress = ingress_of()
    ingress.handle(stored(0, range(20)), 0.0)
    ingress.handle(reported(1), 10.0)

    assert sent(ingress, "a", range(20), 10.0).node == 1
    ingress.handle(reported(0), 10.0)
    assert sent(ingress, "b", range(20), 10.0).node == 0


def test_a_node_that_reports_and_does_not_answer_is_asked_no_more() -> None:
    ingress = ingress_of()
    ingress.handle(stored(0, range(20)), 0.0)
    assert sent(ingress, "a", range(20), 0.0).node == 0

    for node in range(2):
        ingress.handle(reported(node, num_seen=1), 10.0)
    assert sent(ingress, "b", range(20), 10.0).node == 1
    ingress.note_first_token(RequestId("a"), 10.1)
    assert sent(ingress, "c", range(20), 10.1).node == 0


def passed_over_on_node_0() -> Ingress:
    """Node 0 has the prefix; one request waits there while a later one was answered at 5 s."""
    ingress = ingress_of()
    ingress.handle(stored(0, range(20)), 0.0)
    assert sent(ingress, "stuck", range(20), 0.0).node == 0
    ingress.route(asking("later", range(20)), 4.9, among=[NodeId(0)])
    ingress.note_first_token(RequestId("later"), 5.0)
    return ingress


def test_a_node_that_answers_later_requests_is_not_held_for_late_by_one_that_waits() -> None:
    ingress = passed_over_on_node_0()

    for at_s in (5.0, 65.0):
        for node in range(2):
            ingress.handle(reported(node, num_seen=9), at_s)
        route = sent(ingress, f"at {at_s}", range(20), at_s)
        assert route.node == 0
        assert route.first_token_s < 0.5
        ingress.note_first_token(RequestId(f"at {at_s}"), at_s + 0.1)
    ingress.check()


def test_a_node_that_stops_answering_after_it_has_passed_one_over_is_asked_no_more() -> None:
    ingress = passed_over_on_node_0()
    assert sent(ingress, "unanswered", range(20), 5.0).node == 0

    for node in range(2):
        ingress.handle(reported(node, num_seen=9), 15.0)
    assert sent(ingress, "next", range(20), 15.0).node == 1


def test_a_node_that_answers_in_order_is_as_late_as_the_oldest_that_waits() -> None:
    ingress = ingress_of(1)
    dues_s = [sent(ingress, name, range(20)).first_token_s for name in ("a", "b", "c")]
    ingress.note_first_token(RequestId("a"), 10.0)

    ingress.handle(reported(0, num_seen=3), 10.0)
    own_s = PAGE_SIZE / 2 * TOKEN_S
    assert sent(ingress, "d", range(20), 10.0).first_token_s == pytest.approx(
        10.0 - dues_s[1] + own_s, abs=0.5
    )


def test_a_slow_node_gets_what_it_can_do() -> None:
    ingress = ingress_of()
    ingress.handle(reported(0, prefill=Line(0.0, 10 * TOKEN_S)), 0.0)

    nodes = [sent(ingress, f"r{i}", range(100 * i, 100 * i + 10)).node for i in range(11)]

    assert nodes.count(NodeId(0)) <= 1


def test_pages_of_another_node_are_pulled_if_that_is_quicker() -> None:
    ingress = ingress_of()
    ingress.handle(stored(0, range(20)), 0.0)
    quick, slow = Line(0.01, 0.001), Line(0.01, 10.0)
    ingress.handle(reported(0, busy_s=100.0, interval_s=1.0), 0.0)

    ingress.handle(reported(1, pull=quick), 0.0)
    pulled = sent(ingress, "a", range(20))
    assert (pulled.node, pulled.num_pulled_tokens) == (1, 20 * PAGE_SIZE)
    assert pulled.first_token_s == pytest.approx(0.03 + 0.5 * PAGE_SIZE * TOKEN_S)
    assert pulled.header.endswith("l1=0, l2=0, peer=320")

    ingress.release(RequestId("a"), 0.0)
    ingress.handle(reported(1, pull=slow, num_seen=1), 0.0)
    computed = sent(ingress, "b", range(20))
    assert (computed.node, computed.num_pulled_tokens) == (1, 0)


def test_a_popular_prefix_spreads_when_its_node_is_busy() -> None:
    ingress = ingress_of()
    ingress.handle(stored(0, range(20)), 0.0)

    nodes = [sent(ingress, f"r{i}", range(20)).node for i in range(200)]

    assert nodes[:20] == [0] * 20
    assert 1 in nodes


@pytest.mark.parametrize("policy", POLICIES)
def test_nobody_is_sent_to_a_node_that_is_gone(policy: type[RoutingPolicy]) -> None:
    ingress = ingress_of(3, policy())
    routes = {f"r{i}": sent(ingress, f"r{i}", range(i, i + 5)) for i in range(9)}

    lost = ingress.handle(NodeGone(node=NodeId(1)), 0.0)

    assert set(lost) == {name for name, route in routes.items() if route.node == 1}
    assert all(sent(ingress, f"s{i}", range(9 * i, 9 * i + 5)).node != 1 for i in range(9))
    ingress.handle(NodeGone(node=NodeId(0)), 0.0)
    ingress.handle(NodeGone(node=NodeId(2)), 0.0)
    assert ingress.route(asking("t", range(3)), 0.0) is None


def test_who_comes_back_under_its_name_has_nothing_of_the_former() -> None:
    ingress = ingress_of()
    ingress.handle(stored(1, range(20)), 0.0)
    sent(ingress, "a", range(20))
    assert ingress.handle(NodeGone(node=NodeId(1)), 0.0) == ("a",)
    ingress.handle(found(7, "n1"), 0.0)
    assert sent(ingress, "b", range(20)).node == 0, "it has not reported"

    # Late words of and about the former one.
    ingress.handle(stored(1, range(20)), 1.0)
    ingress.handle(reported(1), 1.0)
    ingress.note_first_token(RequestId("a"), 1.0)
    assert ingress.handle(NodeGone(node=NodeId(1)), 1.0) == ()
    ingress.handle(reported(7), 1.0)
    ingress.handle(reported(0, busy_s=9.0, num_seen=1), 1.0)

    route = sent(ingress, "c", range(20), 1.0)
    assert (route.node, route.name, route.num_cached_tokens, route.number) == (7, "n1", 0, 1)


def test_what_is_told_anew_takes_the_place_of_what_was_known_once_it_is_whole() -> None:
    ingress = ingress_of(1)
    ingress.handle(stored(0, range(20)), 0.0)

    ingress.handle(FollowingBegun(node=NodeId(0)), 0.0)
    part = stored(0, range(5))
    news = KvNews(events=part.news.events, is_whole=False)
    ingress.handle(NodeNews(node=NodeId(0), news=news), 0.0)
    assert sent(ingress, "a", range(20)).num_cached_tokens == 20 * PAGE_SIZE

    ingress.handle(stored(0, range(5, 8)), 0.0)
    assert sent(ingress, "b", range(20)).num_cached_tokens == 8 * PAGE_SIZE


def test_events_of_unknown_pages_change_nothing() -> None:
    ingress = ingress_of(1)
    ingress.handle(stored(0, range(5)), 0.0)

    ingress.handle(removed(0, range(50, 60)), 0.0)
    ingress.handle(stored(0, range(5)), 0.0)
    assert sent(ingress, "a", range(9)).num_cached_tokens == 5 * PAGE_SIZE

    ingress.release(RequestId("a"), 0.0)
    ingress.handle(reported(0, num_seen=1), 0.0)
    cleared = KvNews(events=(TierCleared(tier=Tier.L1, lane=0),), is_whole=True)
    ingress.handle(NodeNews(node=NodeId(0), news=cleared), 0.0)
    assert sent(ingress, "b", range(9)).num_cached_tokens == 0


def test_the_error_of_a_prediction_is_told_once() -> None:
    ingress = ingress_of(1)
    route = sent(ingress, "a", range(10))
    assert ingress.route_of(RequestId("a")) == route

    late_s = ingress.note_first_token(RequestId("a"), route.first_token_s + 0.25)

    assert late_s == pytest.approx(0.25)
    assert ingress.note_first_token(RequestId("a"), 9.0) is None
    assert ingress.note_first_token(RequestId("stranger"), 9.0) is None
    assert ingress.route_of(RequestId("a")) is None


def test_sessions_move_only_with_their_node() -> None:
    ingress = ingress_of(4, SessionHash())
    before = {i: sent(ingress, f"a{i}", range(3), session_id=f"s{i}").node for i in range(60)}
    assert len(set(before.values())) == 4

    ingress.handle(NodeGone(node=NodeId(2)), 0.0)

    after = {i: sent(ingress, f"b{i}", range(3), session_id=f"s{i}").node for i in range(60)}
    assert all(after[i] == before[i] for i in range(60) if before[i] != 2)


def test_turns_are_even() -> None:
    ingress = ingress_of(3, RoundRobin())

    nodes = [sent(ingress, f"r{i}", range(i)).node for i in range(9)]

    assert nodes == [0, 1, 2] * 3


def test_a_thousand_requests_that_wait_are_not_counted_with_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at = []
    is_unseen = Node._is_unseen
    monkeypatch.setattr(
        Node, "_is_unseen", lambda *each: looked_at.append(None) or is_unseen(*each)
    )
    ingress = ingress_of(2)
    for number in range(1000):
        ingress.route(asking(f"r{number}", range(3)), 0.0)
    for number in range(1000):
        ingress.note_first_token(RequestId(f"r{number}"), 1.0)
    assert len(looked_at) == 2000
    ingress.check()
