"""Which engines of a service start, drain and are given up."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from raydix.runtime.actors.service.plan import (
    Drain,
    EngineState,
    EngineView,
    GiveUp,
    Start,
    Step,
    Waiting,
    next_steps,
    waiting_engines,
)
from raydix.runtime.config.policies import EngineRole

STARTING, SERVING, AWAY, DRAINING = EngineState
PREFILL, DECODE, BOTH = EngineRole


def engine(
    number: int, node: str, state: EngineState = SERVING, role: EngineRole = BOTH
) -> EngineView:
    return EngineView(name=f"s/{number}", number=number, node=node, role=role, state=state)


def start(node: str, role: EngineRole = BOTH) -> Start:
    return Start(node=node, role=role)


def steps(
    engines: list[EngineView],
    nodes: str,
    wanted: int | Mapping[EngineRole, int],
    *,
    resting: str = "",
    former: Mapping[str, Sequence[EngineRole]] | None = None,
    max_starting: int = 9,
) -> list[Step]:
    return next_steps(
        engines,
        nodes=nodes,
        resting=resting,
        former=former or {},
        wanted={BOTH: wanted} if isinstance(wanted, int) else wanted,
        max_starting=max_starting,
    )


def test_each_engine_has_a_node_of_its_own() -> None:
    assert steps([], "abc", 2) == [start("a"), start("b")]
    assert steps([engine(1, "a")], "abc", 3) == [start("b"), start("c")]
    assert steps([engine(1, "a"), engine(2, "b", STARTING)], "ab", 3) == []


def test_an_engine_that_is_away_is_replaced_only_once_its_node_is_lost() -> None:
    assert steps([engine(1, "a", AWAY)], "abc", 1) == []
    assert steps([engine(1, "a", AWAY)], "bc", 1) == [start("b")]
    assert steps([engine(1, "a"), engine(2, "b", AWAY)], "ab", 1) == [Drain(name="s/2")]
    assert steps([engine(1, "a", AWAY), engine(2, "b")], "ab", 1) == [Drain(name="s/1")]


def test_a_node_that_joins_gets_an_engine_that_is_wanted() -> None:
    engines = [engine(1, "a")]
    assert steps(engines, "a", 2) == []
    assert steps(engines, "ab", 2) == [start("b")]


def test_an_engine_of_a_dead_node_is_replaced_and_its_start_called_off() -> None:
    assert steps([engine(1, "x"), engine(2, "b")], "abc", 2) == [start("a")]
    lost = [engine(1, "x", STARTING), engine(2, "b")]
    assert steps(lost, "abc", 2) == [GiveUp(name="s/1"), start("a")]


def test_what_is_not_wanted_drains_the_latest_first_and_starts_before_all() -> None:
    engines = [engine(1, "a"), engine(2, "b"), engine(3, "c", STARTING)]
    assert steps(engines, "abc", 2) == [GiveUp(name="s/3")]
    assert steps(engines, "abc", 1) == [GiveUp(name="s/3"), Drain(name="s/2")]
    assert steps([engine(1, "a"), engine(2, "b", DRAINING)], "ab", 1) == []


def test_a_node_where_a_start_failed_rests_and_its_engine_stays() -> None:
    assert steps([], "ab", 2, resting="a") == [start("b")]
    assert steps([engine(1, "a")], "a", 1, resting="a") == []


def test_nodes_of_an_earlier_version_come_first_and_those_that_drain_last() -> None:
    engines = [engine(1, "a", DRAINING)]
    assert steps(engines, "abc", 1, former={"c": [BOTH]}) == [start("c")]
    assert steps(engines, "abc", 1) == [start("b")]
    assert steps(engines, "abc", 1, resting="bc") == [start("a")]


def test_no_more_start_at_once_than_may() -> None:
    assert steps([], "abc", 3, max_starting=1) == [start("a")]
    assert steps([engine(1, "a", STARTING)], "abc", 3, max_starting=1) == []


def test_each_role_has_its_first_engine_before_any_has_its_second() -> None:
    wanted = {PREFILL: 2, DECODE: 2}
    assert steps([], "abcd", wanted) == [
        *(start("a", DECODE), start("b", PREFILL), start("c", DECODE), start("d", PREFILL))
    ]
    assert steps([], "a", wanted) == [start("a", DECODE)]
    assert steps([engine(1, "a", role=PREFILL)], "ab", wanted) == [start("b", DECODE)]


def test_the_engine_that_replaces_a_lost_one_has_its_role() -> None:
    engines = [engine(1, "x", role=PREFILL), engine(2, "a"), engine(3, "b")]
    wanted = {BOTH: 2, PREFILL: 1}
    assert steps(engines, "abc", wanted) == [start("c", PREFILL)]
    engines = [engine(1, "a", role=PREFILL), engine(2, "x", STARTING), engine(3, "b")]
    assert steps(engines, "abc", wanted) == [GiveUp(name="s/2"), start("c")]


def test_where_nodes_are_too_few_a_role_that_lost_its_only_engine_gets_the_place_of_another() -> (
    None
):
    engines = [
        engine(1, "x", role=DECODE),
        *(engine(n, "abc"[n - 2], role=PREFILL) for n in (2, 3)),
    ]
    wanted = {PREFILL: 2, DECODE: 1}
    assert steps(engines, "ab", wanted) == [Drain(name="s/3")]
    engines = [engines[1], engine(3, "b", DRAINING, PREFILL)]
    assert steps(engines, "ab", wanted) == [start("b", DECODE)]
    assert steps([engines[0], engine(4, "b", role=DECODE)], "ab", wanted) == [], "it stays so"
    starting = [engine(1, "a", STARTING), engine(2, "b")]
    assert steps(starting, "ab", {BOTH: 2, PREFILL: 1}) == [GiveUp(name="s/1")]


def test_no_engine_makes_room_that_is_the_only_one_of_its_role_or_where_a_node_is_free() -> None:
    engines = [engine(1, "a", role=PREFILL), engine(2, "b", role=PREFILL)]
    wanted = {PREFILL: 2, DECODE: 1}
    assert steps(engines, "abc", wanted) == [start("c", DECODE)]
    assert steps(engines, "abc", wanted, resting="c") == []
    assert steps(engines[:1], "a", wanted) == []


def test_engines_of_the_role_of_which_there_are_too_many_drain() -> None:
    engines = [engine(1, "a", role=PREFILL), engine(2, "b"), engine(3, "c")]
    assert steps(engines, "abc", {BOTH: 1, PREFILL: 1}) == [Drain(name="s/3")]
    assert steps(engines, "abc", {BOTH: 2}) == [Drain(name="s/1")]
    assert steps(engines, "abcd", {BOTH: 1, PREFILL: 2}) == [
        *(Drain(name="s/3"), start("d", PREFILL))
    ]


def test_an_engine_takes_the_place_of_an_earlier_one_of_its_role() -> None:
    former = {"a": [BOTH], "b": [PREFILL], "c": [BOTH]}
    wanted = {BOTH: 2, PREFILL: 1}
    assert steps([], "abcd", wanted, former=former) == [
        *(start("a"), start("b", PREFILL), start("c"))
    ]
    assert steps([], "bd", {BOTH: 1}, former=former) == [start("b")], "its L2 is warm"


def test_whatever_happens_a_service_comes_to_what_is_wanted() -> None:
    """Nodes come and go and the number changes; once all is quiet, as many serve as can."""
    for seed in range(200):
        rng = random.Random(seed)
        engines: dict[str, EngineView] = {}
        nodes, num_wanted, number = "ab", 2, 0
        wanted: dict[EngineRole, int] = {BOTH: 2}
        for turn in range(60):
            if turn < 40 and rng.random() < 0.3:
                nodes = "".join(sorted(rng.sample("abcd", rng.randint(1, 4))))
                num_wanted = rng.randint(0, 4)
                num_prefill = rng.randint(0, num_wanted)
                wanted = {PREFILL: num_prefill, BOTH: num_wanted - num_prefill}
            for step in steps(list(engines.values()), nodes, wanted):
                match step:
                    case Start(node=node, role=role):
                        number += 1
                        engines[f"s/{number}"] = engine(number, node, STARTING, role)
                    case Drain(name=name):
                        assert engines[name].state in (SERVING, AWAY)
                        engines[name] = replace(engines[name], state=DRAINING)
                    case GiveUp(name=name):
                        assert engines.pop(name).state is STARTING
            lasting = [one for one in engines.values() if one.state is not DRAINING]
            on_nodes = Counter(one.node for one in lasting)
            assert all(count == 1 for count in on_nodes.values())
            assert sum(count for node, count in on_nodes.items() if node in nodes) <= num_wanted
            for each in list(engines.values()):
                if each.node not in nodes and each.state is not STARTING:
                    del engines[each.name]
                elif rng.random() < 0.5:
                    if each.state is DRAINING:
                        del engines[each.name]
                    elif each.node in nodes:
                        engines[each.name] = replace(each, state=rng.choice([SERVING, AWAY]))
        serving = [one for one in engines.values() if one.state in (SERVING, AWAY)]
        assert len(serving) == min(num_wanted, len(nodes)), seed
        roles = Counter(one.role for one in serving)
        assert all(roles[role] <= number for role, number in wanted.items()), seed
        num_roles = sum(number > 0 for number in wanted.values())
        if len(nodes) >= num_roles:
            assert all(roles[role] for role, number in wanted.items() if number), seed


def waiting(
    engines: list[EngineView], nodes: str, num_wanted: int, **resting: str
) -> dict[str, int]:
    """How many engines wait, by the first words of what they wait for."""
    found = waiting_engines(engines, nodes=nodes, resting=resting, num_wanted=num_wanted)
    return {" ".join(each.reason.split()[:2]): each.num_engines for each in found}


def test_engines_beyond_the_nodes_wait_for_nodes() -> None:
    assert waiting([engine(1, "a")], "a", 3) == {"a node": 2}
    [told] = waiting_engines([engine(1, "a")], nodes="a", resting={}, num_wanted=3)
    assert told == Waiting(num_engines=2, reason=told.reason)
    assert "the cluster has 1" in told.reason
    assert waiting([engine(1, "a"), engine(2, "b", STARTING)], "ab", 2) == {}
    assert waiting([engine(1, "gone")], "", 1) == {"a node": 1}


def test_engines_wait_for_another_try_where_a_start_has_failed() -> None:
    assert waiting([engine(1, "a")], "ab", 3, b="no room") == {"another try": 1, "a node": 1}
    [told] = waiting_engines([], nodes="b", resting={"b": "no room"}, num_wanted=1)
    assert told.reason == "another try on node b, where: no room"
    assert waiting([engine(1, "a")], "abc", 2, b="no room") == {"their turn,": 1}


def test_as_many_wait_as_are_wanted_and_neither_start_nor_serve() -> None:
    rng = random.Random(5)
    for _ in range(500):
        nodes = "abcd"[: rng.randrange(5)]
        engines = [
            engine(number, node, rng.choice(list(EngineState)))
            for number, node in enumerate(rng.sample("abcdx", rng.randrange(6)))
        ]
        resting = {node: "full" for node in nodes if rng.random() < 0.4}
        num_wanted = rng.randrange(6)
        found = waiting_engines(engines, nodes=nodes, resting=resting, num_wanted=num_wanted)
        there = [one for one in engines if one.node in nodes and one.state is not DRAINING]
        assert sum(each.num_engines for each in found) == max(0, num_wanted - len(there))
