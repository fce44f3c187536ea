"""Where a request's first token comes soonest: on which lane of a node, or on which node.

A pure function. There are no thresholds: load, what is cached and what others hold are all told in
seconds, so that each of them counts for as much as it costs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_ALIKE_DIGITS = 4
"""Times that agree to a tenth of a millisecond are alike, and the ties decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What it would take to serve a request at one place that could."""

    wait_s: float
    """The work that is queued there."""
    own_s: float
    """The time to load, to fetch or to compute what the place lacks of the request."""
    caused_s: float
    """The price of that work: by how much others wait longer for it, all together."""
    is_preferred: bool
    """Whether the request's session was there last."""
    num_near_pages: int
    """The number of leading pages that need not even be loaded."""
    num_requests: int
    """The number of requests that are there."""

    @property
    def first_token_s(self) -> float:
        """The predicted time to the first token."""
        return self.wait_s + self.own_s


def choose_place(places: Sequence[Place]) -> int:
    """The index of the place where the request waits least, together with those that it delays.

    So a prefix that another place holds is computed again only where that pays, and what many ask
    for spreads as they come to wait for it. Ties go to the session's place, then to the longest
    prefix, then to the fewest requests, then to the first. Raises ValueError if there is no place.
    """

    def cost(index: int) -> tuple[float, bool, int, int]:
        place = places[index]
        return (
            round(place.first_token_s + place.caused_s, _ALIKE_DIGITS),
            not place.is_preferred,
            -place.num_near_pages,
            place.num_requests,
        )

    if not places:
        raise ValueError("there is no place to choose from; expected at least one")
    return min(range(len(places)), key=cost)
