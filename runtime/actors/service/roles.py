"""How many engines of each role a service wants, and which of an earlier version it keeps. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from raydix.runtime.config.policies import EngineRole

RoleCounts = Mapping[EngineRole, int]
"""Engines by their role; a role that is not named has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRoles:
    """Which roles the engines of a service have."""

    usual: EngineRole
    """The role of all engines but those that are apart, as the configuration has it."""
    num_prefill: int = 0
    """Engines that compute prompts for the others; their number does not change with the load."""

    def wanted(self, num_usual: int) -> RoleCounts:
        """The engines that are wanted, of which `num_usual` have the usual role."""
        return Counter({self.usual: num_usual}) + Counter({EngineRole.PREFILL: self.num_prefill})


def missing_roles(present: RoleCounts, wanted: RoleCounts) -> list[EngineRole]:
    """The roles that engines are still to have, in the order in which they are worth to start.

    Each role has its first engine before any has its second, and whole requests go before prompts:
    nobody could go on with these.
    """
    places = [
        (number, role is EngineRole.PREFILL, role)
        for role, num_wanted in wanted.items()
        for number in range(present.get(role, 0), num_wanted)
    ]
    return [role for _, _, role in sorted(places)]


def kept_roles(
    former: RoleCounts,
    *,
    serving: RoleCounts,
    wanted: RoleCounts,
    num_nodes: int,
    lacks_room: EngineRole | None,
) -> RoleCounts:
    """Which of the `former` engines, those of an earlier version, are to go on.

    One ends for each of the new version that serves, of the same role if there is one; all do once
    those are as many as are wanted. num_nodes: how many nodes live, of which each has one of them
    at most. lacks_room: the role of the next engine, which finds no room beside them, so that one
    of them has to end before it.
    """
    if not missing_roles(serving, wanted):
        return {}
    kept = {role: max(0, number - serving.get(role, 0)) for role, number in former.items()}
    # What has gone with its node has no place to come back to, and is not to be waited for.
    num_there = min(sum(former.values()), num_nodes)
    num_kept = num_there - sum(serving.values()) - int(lacks_room is not None)
    for number in range(sum(kept.values()) - max(0, num_kept)):
        among = [
            role for role in kept if 0 < kept[role] > wanted.get(role, 0) - serving.get(role, 0)
        ]
        if not among and number == 0 and lacks_room is not None and kept.get(lacks_room, 0) > 0:
            among = [lacks_room]
        # One ends of a role of which there are too many, or else of which most are left, and of
        # prompts before the others.
        ending = max(among or kept, key=lambda role: (kept[role], role is EngineRole.PREFILL))
        kept[ending] -= 1
    return kept
