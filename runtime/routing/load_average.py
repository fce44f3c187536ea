"""How busy a node has been of late, and how many requests have come: what delays are worth."""

import math

AVERAGED_S = 20.0
"""Seconds after which what was seen counts 1/e."""


class LoadAverage:
    """Owns: the averages of one node."""

    def __init__(self, now_s: float) -> None:
        """Begin with a node that was idle."""
        self._at_s = now_s
        self._is_busy = False
        self._busy_fraction = 0.0
        self._arrivals_per_s = 0.0

    def arrive(self, now_s: float) -> None:
        """A request has come."""
        self._advance(now_s)
        self._arrivals_per_s += 1 / AVERAGED_S

    def work(self, now_s: float) -> None:
        """From now on prompts are computed."""
        self._advance(now_s)
        self._is_busy = True

    def rest(self, now_s: float) -> None:
        """From now on there is no prompt to compute."""
        self._advance(now_s)
        self._is_busy = False

    def arrivals_per_s(self, now_s: float) -> float:
        """Requests per second."""
        self._advance(now_s)
        return self._arrivals_per_s

    def busy_fraction(self, now_s: float) -> float:
        """The part of the time in which prompts were computed: 0 to 1."""
        self._advance(now_s)
        return self._busy_fraction

    def _advance(self, now_s: float) -> None:
        kept = math.exp(-max(0.0, now_s - self._at_s) / AVERAGED_S)
        self._arrivals_per_s *= kept
        self._busy_fraction = self._busy_fraction * kept + self._is_busy * (1 - kept)
        self._at_s = max(now_s, self._at_s)
