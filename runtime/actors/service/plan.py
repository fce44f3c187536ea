"""Which engines of a service to start, drain and give up. Pure."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from raydix.runtime.actors.service.roles import RoleCounts, missing_roles
from raydix.runtime.config.policies import EngineRole


class EngineState(StrEnum):
    """What an engine of a service does."""

    STARTING = "starts"
    SERVING = "serves"
    AWAY = "away"
    """The way to one that served is lost, which says nothing of the engine: it may still serve."""
    DRAINING = "drains"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineView:
    """An engine as its service sees it."""

    name: str
    number: int
    """The place in the order in which the engines of the service were started."""
    node: str
    """The id of the Ray node where it runs."""
    role: EngineRole
    state: EngineState


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start an engine of this role on this node."""

    node: str
    role: EngineRole


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
    former: Mapping[str, Sequence[EngineRole]],
    wanted: RoleCounts,
    max_starting: int,
) -> list[Step]:
    """What brings a service from these engines to those that are `wanted`, one of them on a node.

    nodes: the ids of all nodes that live. resting: those where no start is to be tried yet, as one
    has failed. former: the roles of the engines of an earlier version that a node has.
    max_starting: how many engines may start at once. A start is called off whose node has ended, or
    whose engine is not wanted any more; an engine that serves is drained, the latest first. So it
    is where nodes are too few, and a role has lost its only engine while another has several. One
    that is away counts as one that serves: no other comes in its place before it has ended.
    """
    lost = [each for each in engines if each.node not in nodes]
    given_up = [each for each in lost if each.state is EngineState.STARTING]
    steps: list[Step] = [GiveUp(name=each.name) for each in given_up]

    starting = _in_states(engines, EngineState.STARTING, without=given_up)
    serving = _in_states(engines, EngineState.SERVING, EngineState.AWAY, without=lost)
    present = Counter(each.role for each in starting + serving)
    # Who starts serves nobody yet, and who is away perhaps nobody any more.
    away = [each for each in serving if each.state is EngineState.AWAY]
    reached = [each for each in serving if each.state is EngineState.SERVING]
    ending_first = starting[::-1] + away[::-1] + reached[::-1]
    taken = {each.node for each in ending_first}
    surplus = present - Counter(wanted)
    if not surplus and taken.issuperset(nodes):
        surplus = _surplus_of_few(present, wanted)
    for each in ending_first:
        if surplus[each.role] > 0:
            surplus[each.role] -= 1
            starts = each.state is EngineState.STARTING
            steps.append(GiveUp(name=each.name) if starts else Drain(name=each.name))

    draining = {each.node for each in engines if each.state is EngineState.DRAINING}
    free = [node for node in nodes if node not in taken and node not in resting]
    num_starts = max(0, max_starting - len(starting))
    for role in missing_roles(present, wanted)[:num_starts]:
        if not free:
            break
        node = min(free, key=lambda node: _rank(node, role, draining, former.get(node, ())))
        free.remove(node)
        steps.append(Start(node=node, role=role))
    return steps


def _surplus_of_few(present: RoleCounts, wanted: RoleCounts) -> Counter[EngineRole]:
    """The role of which one engine ends where all nodes have one, so that another has its first.

    None does unless a role has none, as its node has ended, and another one has two.
    """
    most = max(present, key=lambda role: (present[role], role is EngineRole.PREFILL), default=None)
    are_lacking = any(number and not present.get(role) for role, number in wanted.items())
    return Counter([most] if most is not None and are_lacking and present[most] > 1 else [])


def _rank(
    node: str, role: EngineRole, draining: Collection[str], former: Sequence[EngineRole]
) -> tuple[bool, int, int, str]:
    """How soon an engine of a role is to start on a free node: the smallest comes first.

    Where an earlier version has computed, L2 is warm, and an engine of the same role leaves its
    place to it. What an engine that drains still holds, the new one may lack.
    """
    return node in draining, -former.count(role), -len(former), node


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


def _in_states(
    engines: Sequence[EngineView], *states: EngineState, without: Sequence[EngineView]
) -> list[EngineView]:
    """The engines in any of these states, in the order of their numbers."""
    found = [each for each in engines if each.state in states and each not in without]
    return sorted(found, key=lambda each: each.number)
