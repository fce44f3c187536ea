"""Whether one node computes a prompt, and another one goes on from its first token. Pure.

Both ways are told in seconds that somebody waits: the request for its first token and, if it is
handed over, for its second one; others for what is computed, those who decode among them. So what
is short, or cached, is not split, nor is what disturbs nobody.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from raydix.ids import NodeId
from raydix.runtime.routing.choice import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOver:
    """What it takes to go on at one node with what another one has begun, by the rates of both."""

    foreseen_s: float
    """From the first token until the second one, beyond the time of a step."""
    computed_s: float
    """The time to compute what comes behind the last whole page."""
    anew_s: float
    """The time to compute all that is lacking there."""
    num_decoding: int
    """The requests that decode there, or are about to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What it would take to compute a prompt on one node and to go on at another one."""

    first: NodeId
    """The node that gives the first token."""
    then: NodeId
    """The node that gives all others."""
    place: Place
    """The price at the first node, as that of a whole request there."""
    take_over: TakeOver
    hand_over_s: float
    """How long what is foreseen of that will take, as others have shown."""

    @property
    def delayed_s(self) -> float:
        """How much later those who decode at the second node get their tokens, all together.

        Neither node waits for pages for longer than computing them would take: what has taken as
        long was computed anew.
        """
        taken = self.take_over
        is_anew = self.hand_over_s >= taken.anew_s
        return taken.num_decoding * (taken.anew_s if is_anew else taken.computed_s)

    @property
    def cost_s(self) -> float:
        """How long all wait, together."""
        return cost_s(self.place) + self.hand_over_s + self.delayed_s


def cost_s(place: Place) -> float:
    """How long all wait, together, for what is done at one place."""
    return place.first_token_s + place.caused_s


def choose_split(whole: Place, splits: Sequence[Split]) -> Split | None:
    """The split that costs least, if that is less than to serve the request whole; else None."""
    best = min(splits, key=lambda split: split.cost_s, default=None)
    return best if best is not None and best.cost_s < cost_s(whole) else None
