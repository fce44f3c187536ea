"""Dropping what one L1 held at a moment and nobody has used since, a few nodes at a time."""

from dataclasses import dataclass, field

from raydix.runtime.cache.sorted_entries import OrderPlace


@dataclass(slots=True, kw_only=True)
class FlushWalk:
    """Owns: how far a flush of one tree has come.

    It walks along the eviction order. Whatever leaf it meets and was not used since the flush was
    asked for goes, and what is above it and thereby becomes a leaf. What is published or used
    meanwhile stays, and so does what a request holds when the walk comes by. A policy may put
    behind the walk what becomes a leaf later: it walks until it finds nothing more. Then windows
    go that no lock pins, as many as there were by then.
    """

    used_until_s: float
    """Later uses keep a node."""
    place: OrderPlace | None = None
    """All before it in the eviction order were looked at; None: at the start."""
    has_found: bool = False
    """Something went since it was at the start."""
    windows_left: list[int] | None = field(default=None)
    """Per group, pages that are still to go of windows; None: leaves come first."""

    @property
    def is_done(self) -> bool:
        """Nothing is left to go."""
        return self.windows_left is not None and not any(self.windows_left)
