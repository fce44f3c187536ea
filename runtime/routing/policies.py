"""The ways to choose a node: by predicted time, by session, or one after the other."""

import hashlib
from collections.abc import Sequence
from typing import Protocol, assert_never

from raydix.runtime.cache.page_key import KEY_BYTES
from raydix.runtime.config.policies import RoutingPolicyName
from raydix.runtime.routing.choice import Place, choose_place
from raydix.runtime.routing.events import Asking

_PREFIX_TOKENS = 256
"""The tokens at the beginning of a prompt that stand for what it shares with others."""


class RoutingPolicy(Protocol):
    """Chooses among nodes of which everything is known that can be."""

    minds_roles: bool
    """Whether nodes are asked for what they are for; else each serves whole requests."""

    def choose(self, asking: Asking, names: Sequence[str], places: Sequence[Place]) -> int:
        """The index of the node that gets a request; there is at least one."""


class SoonestNode:
    """The node where the first token comes soonest, the waiting of others included."""

    minds_roles = True

    def choose(self, asking: Asking, names: Sequence[str], places: Sequence[Place]) -> int:
        """The node that `choose_place` names."""
        return choose_place(places)


class SessionHash:
    """The node that a session's name says, whatever it has to do; of a nameless one the prompt's.

    Each node draws a number for each session, and the highest takes it (Thaler and Ravishankar,
    1998): when a node goes its sessions alone move.
    """

    minds_roles = False

    def choose(self, asking: Asking, names: Sequence[str], places: Sequence[Place]) -> int:
        """The node with the highest draw."""
        session = _beginning(asking) if asking.session_id is None else asking.session_id.encode()

        def draw(index: int) -> bytes:
            return hashlib.sha256(names[index].encode() + b"\x00" + session).digest()

        return max(range(len(names)), key=draw)


class RoundRobin:
    """Owns: whose turn it is."""

    minds_roles = False

    def __init__(self) -> None:
        self._num_chosen = 0

    def choose(self, asking: Asking, names: Sequence[str], places: Sequence[Place]) -> int:
        """One after the other."""
        self._num_chosen += 1
        return (self._num_chosen - 1) % len(names)


def policy_of(name: RoutingPolicyName) -> RoutingPolicy:
    """The policy of this name."""
    match name:
        case RoutingPolicyName.KV:
            return SoonestNode()
        case RoutingPolicyName.SESSION:
            return SessionHash()
        case RoutingPolicyName.ROUND_ROBIN:
            return RoundRobin()
        case _:
            assert_never(name)


def _beginning(asking: Asking) -> bytes:
    """What stands for how a prompt begins; of one without a full page its own name."""
    for page_size, keys in asking.keys.items():
        stop = KEY_BYTES * max(1, _PREFIX_TOKENS // page_size)
        if keys:
            return keys[:stop][-KEY_BYTES:]
    return asking.request_id.encode()
