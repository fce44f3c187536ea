"""What thousands of connections leave behind when they close."""

_MANY = 1_000
"""The number of connections that leave about 10 MB behind."""


class Ebb:
    """Owns: the most connections since memory was last given back, and how many there were last."""

    def __init__(self) -> None:
        self._most = 0
        self._last = 0

    def is_over(self, num_connections: int) -> bool:
        """Whether many have closed by now, and no more do; true once for each ebb."""
        is_falling = num_connections < self._last
        self._last = num_connections
        self._most = max(self._most, num_connections)
        if is_falling or self._most - num_connections < _MANY:
            return False
        self._most = num_connections
        return True
