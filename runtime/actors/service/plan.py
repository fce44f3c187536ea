"""Which engines of a service to start, drain and give up. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class EngineState(StrEnum):
    """What an engine of a service does."""

    STARTING = "starts"
    SERVING = "serves"
    DRAINING = "drains"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineView:
    """An engine as its service sees it."""

    name: str
    number: int
    """The place in the order in which the engines of the service were started."""
    node: str
    """The id of the Ray node where it runs."""
    state: EngineState


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start an engine on this node."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Let an engine take nothing new, and end once what is open has ended or gone elsewhere."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """Call an engine's start off."""

    name: str


Step = Start | Drain | GiveUp


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Engines that are wanted and do not start yet."""

    num_engines: int
    reason: str
    """What they wait for, to be read after "wait for"."""


def next_steps(
    engines: Sequence[EngineView],
    *,
    nodes: Sequence[str],
    resting: Collection[str],
    num_former: Mapping[str, int],
    num_wanted: int,
    max_starting: int,
) -> list[Step]:
    """What brings a service from these engines to `num_wanted`, one of them on a node.

    nodes: the ids of all nodes that live. resting: those where no start is to be tried yet, as one
    has failed. num_former: how many engines of an earlier version of the service a node has.
    max_starting: how many engines may start at once. A start is called off whose node has ended, or
    whose engine is not wanted any more; an engine that serves is drained, the latest first.
    """
    lost = [each for each in engines if each.node not in nodes]
    given_up = [each for each in lost if each.state is EngineState.STARTING]
    steps: list[Step] = [GiveUp(name=each.name) for each in given_up]

    starting = _in_state(engines, EngineState.STARTING, without=given_up)
    serving = _in_state(engines, EngineState.SERVING, without=lost)
    num_surplus = len(starting) + len(serving) - num_wanted
    if num_surplus > 0:
        # Who starts serves nobody yet.
        leaving = (starting[::-1] + serving[::-1])[:num_surplus]
        return steps + [
            GiveUp(name=each.name) if each.state is EngineState.STARTING else Drain(name=each.name)
            for each in leaving
        ]

    taken = {each.node for each in starting + serving}
    draining = {each.node for each in engines if each.state is EngineState.DRAINING}
    free = [node for node in nodes if node not in taken and node not in resting]
    # Where an earlier version has computed, L2 is warm. What an engine that drains still holds, the
    # new one may lack.
    free.sort(key=lambda node: (node in draining, -num_former.get(node, 0), node))
    num_starts = min(-num_surplus, max(0, max_starting - len(starting)))
    return steps + [Start(node=node) for node in free[:num_starts]]


def waiting_engines(
    engines: Sequence[EngineView],
    *,
    nodes: Sequence[str],
    resting: Mapping[str, str],
    num_wanted: int,
) -> list[Waiting]:
    """Which engines are wanted and neither start nor serve, after all steps were taken, and why.

    nodes: the ids of all nodes that live. resting: those where no start is to be tried yet, each
    with why the last one has failed there.
    """
    here = [each for each in engines if each.node in nodes]
    taken = {each.node for each in here if each.state is not EngineState.DRAINING}
    num_missing = max(0, num_wanted - len(taken))
    free = [node for node in nodes if node not in taken]
    found = []

    num_next = min(num_missing, sum(node not in resting for node in free))
    if num_next:
        found.append(Waiting(num_engines=num_next, reason="their turn, as one starts at a time"))
    failed = [node for node in free if node in resting][: num_missing - num_next]
    found += [
        Waiting(num_engines=1, reason=f"another try on node {node}, where: {resting[node]}")
        for node in failed
    ]
    num_homeless = num_missing - num_next - len(failed)
    if num_homeless:
        reason = (
            f"a node that has none of them: the cluster has {len(nodes)}, and each takes one. "
            "Add nodes, or ask for fewer engines"
        )
        found.append(Waiting(num_engines=num_homeless, reason=reason))
    return found


def _in_state(
    engines: Sequence[EngineView], state: EngineState, without: Sequence[EngineView]
) -> list[EngineView]:
    """The engines in a state, in the order of their numbers."""
    found = [each for each in engines if each.state is state and each not in without]
    return sorted(found, key=lambda each: each.number)


def num_kept(num_former: int, *, num_serving: int, num_wanted: int, lacks_room: bool) -> int:
    """How many of the `num_former` engines of an earlier version are to go on.

    One ends for each of the new version that serves; all do once those are as many as are wanted.
    lacks_room: the next engine finds no room beside them, so that one of them has to end before it.
    """
    if num_serving >= num_wanted:
        return 0
    return max(0, num_former - num_serving - int(lacks_room))
