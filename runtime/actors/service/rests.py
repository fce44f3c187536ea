"""How long no engine is started on a node where starts have failed."""

_FIRST_S = 1.0
_LONGEST_S = 60.0


class Rests:
    """Owns: where starts have failed lately, how often in a row, and until when that counts."""

    def __init__(self) -> None:
        self._failures: dict[str, int] = {}
        self._until_s: dict[str, float] = {}

    def note_failure(self, node: str, now_s: float) -> None:
        """Note that a start on a node has failed; each further one in a row doubles the rest."""
        number = self._failures[node] = self._failures.get(node, 0) + 1
        self._until_s[node] = now_s + min(_LONGEST_S, _FIRST_S * 2.0 ** (number - 1))

    def note_success(self, node: str) -> None:
        """Note that an engine serves there."""
        self._failures.pop(node, None)
        self._until_s.pop(node, None)

    def resting(self, now_s: float) -> frozenset[str]:
        """The nodes where no start is to be tried yet."""
        return frozenset(node for node, until_s in self._until_s.items() if now_s < until_s)
