"""Which engines of a service start, drain and are given up."""

import random
from collections import Counter

from raydix.runtime.actors.service.plan import (
    Drain,
    EngineState,
    EngineView,
    GiveUp,
    Start,
    Step,
    Waiting,
    next_steps,
    num_kept,
    waiting_engines,
)

STARTING, SERVING, DRAINING = EngineState


def engine(number: int, node: str, state: EngineState = SERVING) -> EngineView:
    return EngineView(name=f"s/{number}", number=number, node=node, state=state)


def steps(
    engines: list[EngineView],
    nodes: str,
    num_wanted: int,
    *,
    resting: str = "",
    num_former: dict[str, int] | None = None,
    max_starting: int = 9,
) -> list[Step]:
    return next_steps(
        engines,
        nodes=nodes,
        resting=resting,
        num_former=num_former or {},
        num_wanted=num_wanted,
        max_starting=max_starting,
    )


def test_each_engine_has_a_node_of_its_own() -> None:
    assert steps([], "abc", 2) == [Start(node="a"), Start(node="b")]
    assert steps([engine(1, "a")], "abc", 3) == [Start(node="b"), Start(node="c")]
    assert steps([engine(1, "a"), engine(2, "b", STARTING)], "ab", 3) == []


def test_a_node_that_joins_gets_an_engine_that_is_wanted() -> None:
    engines = [engine(1, "a")]
    assert steps(engines, "a", 2) == []
    assert steps(engines, "ab", 2) == [Start(node="b")]


def test_an_engine_of_a_dead_node_is_replaced_and_its_start_called_off() -> None:
    assert steps([engine(1, "x"), engine(2, "b")], "abc", 2) == [Start(node="a")]
    lost = [engine(1, "x", STARTING), engine(2, "b")]
    assert steps(lost, "abc", 2) == [GiveUp(name="s/1"), Start(node="a")]


def test_what_is_not_wanted_drains_the_latest_first_and_starts_before_all() -> None:
    engines = [engine(1, "a"), engine(2, "b"), engine(3, "c", STARTING)]
    assert steps(engines, "abc", 2) == [GiveUp(name="s/3")]
    assert steps(engines, "abc", 1) == [GiveUp(name="s/3"), Drain(name="s/2")]
    assert steps([engine(1, "a"), engine(2, "b", DRAINING)], "ab", 1) == []


def test_a_node_where_a_start_failed_rests_and_its_engine_stays() -> None:
    assert steps([], "ab", 2, resting="a") == [Start(node="b")]
    assert steps([engine(1, "a")], "a", 1, resting="a") == []


def test_nodes_of_an_earlier_version_come_first_and_those_that_drain_last() -> None:
    engines = [engine(1, "a", DRAINING)]
    assert steps(engines, "abc", 1, num_former={"c": 1}) == [Start(node="c")]
    assert steps(engines, "abc", 1) == [Start(node="b")]
    assert steps(engines, "abc", 1, resting="bc") == [Start(node="a")]


def test_no_more_start_at_once_than_may() -> None:
    assert steps([], "abc", 3, max_starting=1) == [Start(node="a")]
    assert steps([engine(1, "a", STARTING)], "abc", 3, max_starting=1) == []


def test_earlier_engines_end_one_for_each_that_serves() -> None:
    def kept(num_serving: int, lacks_room: bool = False) -> int:
        return num_kept(3, num_serving=num_serving, num_wanted=2, lacks_room=lacks_room)

    assert [kept(serving) for serving in range(3)] == [3, 2, 0]
    assert kept(0, lacks_room=True) == 2
    assert num_kept(1, num_serving=2, num_wanted=3, lacks_room=False) == 0


def test_whatever_happens_a_service_comes_to_what_is_wanted() -> None:
    """Nodes come and go and the number changes; once all is quiet, as many serve as can."""
    for seed in range(200):
        rng = random.Random(seed)
        engines: dict[str, EngineView] = {}
        nodes, num_wanted, number = "ab", 2, 0
        for turn in range(60):
            if turn < 40 and rng.random() < 0.3:
                nodes = "".join(sorted(rng.sample("abcd", rng.randint(1, 4))))
                num_wanted = rng.randint(0, 4)
            for step in steps(list(engines.values()), nodes, num_wanted):
                match step:
                    case Start(node=node):
                        number += 1
                        engines[f"s/{number}"] = engine(number, node, STARTING)
                    case Drain(name=name):
                        assert engines[name].state is SERVING
                        engines[name] = engine(engines[name].number, engines[name].node, DRAINING)
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
                        engines[each.name] = engine(each.number, each.node)
        serving = [one for one in engines.values() if one.state is SERVING]
        assert len(serving) == min(num_wanted, len(nodes)), seed


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
