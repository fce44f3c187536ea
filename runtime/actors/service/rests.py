"""How long no engine is started on a node where starts have failed."""

_FIRST_S = 1.0
_LONGEST_S = 60.0
_MOST_DOUBLED = 10
"""The first rest is longer than the longest once it is doubled so often."""


class Rests:
    """Owns: where starts have failed lately, how often in a row, why, and until when it counts."""

    def __init__(self) -> None:
        self._failures: dict[str, int] = {}
        self._until_s: dict[str, float] = {}
        self._reasons: dict[str, str] = {}

    def note_failure(self, node: str, reason: str, now_s: float) -> None:
        """Note why a start on a node has failed; each further one in a row doubles the rest."""
        number = self._failures[node] = self._failures.get(node, 0) + 1
        # A node may fail for days: a power of so large a number is none that a float can be.
        doubled = min(number - 1, _MOST_DOUBLED)
        self._until_s[node] = now_s + min(_LONGEST_S, _FIRST_S * 2.0**doubled)
        self._reasons[node] = reason

    def note_success(self, node: str) -> None:
        """Note that an engine serves there."""
        self._failures.pop(node, None)
        self._until_s.pop(node, None)
        self._reasons.pop(node, None)

    def resting(self, now_s: float) -> dict[str, str]:
        """The nodes where no start is to be tried yet, each with why the last one has failed."""
        until = self._until_s.items()
        return {node: self._reasons[node] for node, until_s in until if now_s < until_s}
