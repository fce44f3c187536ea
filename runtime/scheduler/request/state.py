"""Every state that a request can be in, and every move from one to another."""

from collections.abc import Iterable, Mapping, Set
from enum import StrEnum
from typing import Protocol

from raydix.errors import AccountingError


class State(StrEnum):
    """Where a request stands."""

    PLACING = "placing"
    """The request has no lane: keys of its pages are hashed, or the ranks of its lane were lost."""
    WAITING = "waiting"
    """The request is in a lane's queue, and holds no slot, page, lock or lease of its own."""
    COMPILING = "compiling"
    """The request waits in a lane's queue until its grammar is compiled; its turn had come."""
    LEASING = "leasing"
    """The request is admitted, and HostMemory was asked for the pages that it loads from L2."""
    LOADING = "loading"
    """The request's rows may be planned; they count once pages below them have come from L2."""
    PREFILLING = "prefilling"
    """The request computes its prompt, or tokens one by one if it wants logprobs."""
    DECODING = "decoding"
    """The request is in its lane's batch, which keeps its progress."""
    ENDED = "ended"
    """The request holds nothing, and nobody knows it any more."""


QUEUED = frozenset({State.WAITING, State.COMPILING})
"""A request in one of these is in its lane's queue, and holds nothing there but its place."""

ADMITTED = frozenset({State.LEASING, State.LOADING, State.PREFILLING, State.DECODING})
"""A request in one of these has a slot of its lane, and holds pages of L1."""

PREPARING = ADMITTED - {State.DECODING}
"""A request in one of these is admitted, and keeps its progress itself."""

COMPUTING = (State.LOADING, State.PREFILLING, State.DECODING)
"""A request in one of these knows which cached pages it has: what is missing is planned."""

MOVES: Mapping[State, Mapping[State, str]] = {
    State.PLACING: {State.WAITING: "place", State.ENDED: "end"},
    State.WAITING: {
        # A lane that loses its ranks gives those that wait there to others; one that is to sleep
        # has them wait for the wake.
        State.PLACING: "displace",
        State.COMPILING: "await_grammar",
        State.LEASING: "admit",
        State.PREFILLING: "admit",
        State.ENDED: "end",
    },
    State.COMPILING: {
        State.PLACING: "displace",
        State.WAITING: "take_up_grammar",
        State.ENDED: "end",
    },
    State.LEASING: {State.PREFILLING: "begin", State.WAITING: "requeue", State.ENDED: "end"},
    State.LOADING: {State.PREFILLING: "go_on", State.WAITING: "requeue", State.ENDED: "end"},
    State.PREFILLING: {
        # With its lease it begins to run, and its load is on the way.
        State.LOADING: "load",
        State.DECODING: "join",
        State.WAITING: "requeue",
        State.ENDED: "end",
    },
    State.DECODING: {State.WAITING: "requeue", State.ENDED: "end"},
    State.ENDED: {},
}
"""The states to which a request may move from each state, and which of `Transitions` does it.

A request that stops before its end waits again, with its tokens: it gives back what it holds
(`requeue`), or its lane has lost that (`lose_run`).
"""


def require_move(name: str, former: State, new: State) -> None:
    """Raise AccountingError if the table has no such move."""
    if new not in MOVES[former]:
        known = ", ".join(sorted(state.value for state in MOVES[former])) or "no other"
        raise AccountingError(
            f"request {name} moves from {former.value} to {new.value}; from {former.value} it may "
            f"move to {known}"
        )


class HasState(Protocol):
    """A request, as far as its state goes."""

    @property
    def state(self) -> State:
        """The state in which the request is."""


def require_states(owner: str, requests: Iterable[HasState], allowed: Set[State]) -> None:
    """Raise AccountingError unless all whom `owner` has are in a state in which it has them."""
    wrong = {request.state.value for request in requests if request.state not in allowed}
    if wrong:
        raise AccountingError(
            f"{owner} has requests that are {', '.join(sorted(wrong))}; it is to have those that "
            f"are {', '.join(sorted(state.value for state in allowed))}"
        )
