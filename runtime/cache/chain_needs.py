"""How much of a chain a next prompt needs to be answered soon: what a tier learns for `tlru`."""

_MAX_REQUESTS = 1024
"""The requests after which what was seen counts half."""


class ChainNeeds:
    """Owns: how many pages requests have brought that were not there.

    A next prompt of a chain brings its own new tokens in any case. It may lack as many pages beside
    those as requests bring on average: then it waits twice as long for its first token as one that
    lacks nothing, and no longer.
    """

    def __init__(self) -> None:
        self._num_requests = 0
        self._num_pages = 0

    def begin_request(self) -> None:
        """Note that a request begins to use pages."""
        self._num_requests += 1
        if self._num_requests >= _MAX_REQUESTS:
            self._num_requests //= 2
            self._num_pages //= 2

    def brought(self, num_pages: int) -> None:
        """Note that a request has brought pages."""
        self._num_pages += num_pages

    def num_needed(self, deepest: int) -> int:
        """How many pages of a chain that has had so many are needed, from its first one on."""
        num_lacked = self._num_pages // max(1, self._num_requests)
        return max(0, deepest - num_lacked)
