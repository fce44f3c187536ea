"""Which roles engines of a service are to have, and which engines of an earlier version go on."""

import random
from collections import Counter

from raydix.runtime.actors.service.roles import (
    RoleCounts,
    ServiceRoles,
    kept_roles,
    missing_roles,
)
from raydix.runtime.config.policies import EngineRole

PREFILL, DECODE, BOTH = EngineRole


def kept(
    former: RoleCounts,
    serving: RoleCounts,
    wanted: RoleCounts,
    lacks_room: EngineRole | None = None,
    num_nodes: int = 9,
) -> RoleCounts:
    found = kept_roles(
        former, serving=serving, wanted=wanted, num_nodes=num_nodes, lacks_room=lacks_room
    )
    return {role: number for role, number in found.items() if number}


def test_engines_for_prefill_come_to_those_of_the_usual_role() -> None:
    assert ServiceRoles(usual=BOTH).wanted(3) == {BOTH: 3}
    assert ServiceRoles(usual=DECODE, num_prefill=2).wanted(3) == {DECODE: 3, PREFILL: 2}
    assert ServiceRoles(usual=PREFILL).wanted(2) == {PREFILL: 2}


def test_earlier_engines_end_one_for_each_that_serves() -> None:
    former, wanted = {BOTH: 3}, {BOTH: 2}
    assert [kept(former, {BOTH: num}, wanted) for num in range(3)] == [{BOTH: 3}, {BOTH: 2}, {}]
    assert kept(former, {}, wanted, lacks_room=BOTH) == {BOTH: 2}
    assert kept({BOTH: 1}, {BOTH: 2}, {BOTH: 3}) == {}


def test_of_earlier_engines_that_of_the_same_role_ends() -> None:
    both = {PREFILL: 1, BOTH: 2}
    assert kept(both, {BOTH: 1}, both) == {PREFILL: 1, BOTH: 1}
    assert kept(both, {PREFILL: 1}, both) == {BOTH: 2}
    assert kept(both, {BOTH: 1}, both, lacks_room=PREFILL) == {BOTH: 1}
    assert kept(both, {PREFILL: 1, BOTH: 2}, both) == {}


def test_where_the_roles_change_one_ends_of_which_most_are_left() -> None:
    former, wanted = {BOTH: 3}, {PREFILL: 1, DECODE: 2}
    assert kept(former, {DECODE: 1}, wanted) == {BOTH: 2}
    assert kept(former, {DECODE: 1}, wanted, lacks_room=PREFILL) == {BOTH: 1}
    former, wanted = {PREFILL: 1, BOTH: 2}, {BOTH: 3}
    assert kept(former, {BOTH: 2}, wanted) == {PREFILL: 1}
    former, wanted = {PREFILL: 1, BOTH: 1}, {DECODE: 2}
    assert kept(former, {DECODE: 1}, wanted) == {BOTH: 1}, "whole requests need no other engine"


def test_an_engine_that_is_wanted_no_more_ends_before_the_only_one_that_is() -> None:
    former = {DECODE: 1, PREFILL: 1}
    assert kept(former, {}, {DECODE: 1}, lacks_room=DECODE) == {DECODE: 1}
    former, wanted = {DECODE: 1, PREFILL: 2}, {DECODE: 1, PREFILL: 1}
    assert kept(former, {}, wanted, lacks_room=DECODE) == {DECODE: 1, PREFILL: 1}


def test_an_earlier_engine_whose_node_is_lost_is_not_waited_for() -> None:
    former, wanted = {BOTH: 3}, {BOTH: 3}
    assert kept(former, {BOTH: 2}, wanted, num_nodes=2) == {}
    assert kept(former, {}, wanted, lacks_room=BOTH, num_nodes=2) == {BOTH: 1}
    assert kept({PREFILL: 2, BOTH: 1}, {}, wanted, lacks_room=BOTH, num_nodes=1) == {}


def test_as_many_earlier_engines_go_on_as_have_no_follower() -> None:
    rng = random.Random(11)
    for _ in range(2000):
        former, wanted, serving = (
            Counter({role: rng.randrange(4) for role in EngineRole}) for _ in range(3)
        )
        lacks_room, num_nodes = rng.choice([None, *EngineRole]), rng.randrange(10)
        found = kept_roles(
            former, serving=serving, wanted=wanted, num_nodes=num_nodes, lacks_room=lacks_room
        )
        assert all(0 <= number <= former[role] for role, number in found.items())
        is_done = not missing_roles(serving, wanted)
        num_there = min(former.total(), num_nodes)
        num_left = num_there - serving.total() - (lacks_room is not None)
        assert sum(found.values()) == (0 if is_done else max(0, num_left))
