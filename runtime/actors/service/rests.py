"""How long no engine is started on a node where starts have failed."""

from collections.abc import Collection
from dataclasses import dataclass

_FIRST_S = 1.0
_LONGEST_S = 60.0
_MOST_DOUBLED = 10
"""The first rest is longer than the longest once it is doubled so often."""
_REMEMBERED_S = 600.0
"""The time after its rest for which a node that is gone counts as failed, should it come back."""


@dataclass(frozen=True, slots=True)
class _Failures:
    """The failed starts of a node in a row."""

    number: int
    reason: str
    """The reason of the last one."""
    until_s: float
    """The time until which the node rests."""


class Rests:
    """Owns: where starts have failed lately, how often in a row, why, and until when it counts."""

    def __init__(self) -> None:
        self._failures: dict[str, _Failures] = {}

    @property
    def nodes(self) -> Collection[str]:
        """The nodes whose last start is remembered as failed."""
        return self._failures.keys()

    def note_failure(self, node: str, reason: str, now_s: float) -> None:
        """Note why a start on a node has failed; each further one in a row doubles the rest."""
        before = self._failures.get(node)
        number = 0 if before is None else before.number
        # A node may fail for days: a power of so large a number is none that a float can be.
        rest_s = min(_LONGEST_S, _FIRST_S * 2.0 ** min(number, _MOST_DOUBLED))
        self._failures[node] = _Failures(number + 1, reason, now_s + rest_s)

    def note_success(self, node: str) -> None:
        """Note that an engine serves there."""
        self._failures.pop(node, None)

    def note_there(self, nodes: Collection[str], now_s: float) -> None:
        """Note which nodes there are; forget those that have been gone for long.

        A node that is there is remembered until an engine serves on it: a start may take long.
        """
        self._failures = {
            node: each
            for node, each in self._failures.items()
            if node in nodes or now_s < each.until_s + _REMEMBERED_S
        }

    def resting(self, now_s: float) -> dict[str, str]:
        """The nodes where no start is to be tried yet, each with why the last one has failed."""
        return {node: each.reason for node, each in self._failures.items() if now_s < each.until_s}
