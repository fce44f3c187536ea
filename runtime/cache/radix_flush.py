"""Dropping what one L1 held at a moment and nobody has used since, a few nodes at a time."""

from dataclasses import dataclass

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
    """The time after which a use keeps a node in the tree."""
    place: OrderPlace | None = None
    """The place in the eviction order before which all was looked at; None: at the start."""
    has_found: bool = False
    """Whether something has gone since the walk was last at the start."""
    windows_left: list[int] | None = None
    """The pages of windows that are still to go, per KV group; None: leaves come first."""

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to go."""
        return self.windows_left is not None and not any(self.windows_left)

    def go_past(self, place: OrderPlace) -> None:
        """Note that a leaf was looked at; the next one is at this place or behind it."""
        self.place = place

    def note_drop(self) -> None:
        """Note that a node has gone."""
        self.has_found = True

    def reach_end(self, num_unpinned: list[int]) -> None:
        """Start over, as no leaf is left, or go on to the unpinned windows if nothing went."""
        self.place = None
        if not self.has_found:
            self.windows_left = num_unpinned
        self.has_found = False

    def note_windows(self, num_pages: list[int]) -> None:
        """Note how many pages of windows were to go, per group; none: the others are pinned."""
        assert self.windows_left is not None, "leaves come first"
        pairs = zip(self.windows_left, num_pages, strict=True)
        self.windows_left = [left - num for left, num in pairs] if any(num_pages) else []
