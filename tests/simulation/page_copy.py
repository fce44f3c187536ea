"""A page on its way between tiers."""

from typing import NamedTuple


class PageCopy(NamedTuple):
    """One page on its way between L1 and L2."""

    group: int
    page: int
    host_page: int
    generation: int


class StrayWrite(AssertionError):
    """A backup was written to a host page that somebody else had been given in the meantime."""
