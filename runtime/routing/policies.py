"""The ways to choose a node: by predicted time, by session, or one after the other."""

import hashlib
from collections.abc import Sequence
from typing import Protocol

from raydix.runtime.routing.choice import Place, choose_place
from raydix.runtime.routing.events import Asking


class RoutingPolicy(Protocol):
    """Chooses among nodes of which everything is known that can be."""

    def choose(self, asking: Asking, names: Sequence[str], places: Sequence[Place]) -> int:
        """The index of the node that gets a request; there is at least one."""


class SoonestNode:
    """The node where the first token comes soonest, the waiting of others included."""

    def choose(self, asking: Asking, names: Sequence[str], places: Sequence[Place]) -> int:
        """The node that `choose_place` names."""
        return choose_place(places)


class SessionHash:
    """The node that a session's name says, whatever it has to do; of a nameless one the prompt's.

    Each node draws a number for each session, and the highest takes it (Thaler and Ravishankar,
    1998): when a node goes its sessions alone move.
    """

    def choose(self, asking: Asking, names: Sequence[str], places: Sequence[Place]) -> int:
        """The node with the highest draw."""
        session = asking.keys[:32] if asking.session_id is None else asking.session_id.encode()

        def draw(index: int) -> bytes:
            return hashlib.sha256(names[index].encode() + b"\x00" + session).digest()

        return max(range(len(names)), key=draw)


class RoundRobin:
    """Owns: whose turn it is."""

    def __init__(self) -> None:
        self._num_chosen = 0

    def choose(self, asking: Asking, names: Sequence[str], places: Sequence[Place]) -> int:
        """One after the other."""
        self._num_chosen += 1
        return (self._num_chosen - 1) % len(names)
