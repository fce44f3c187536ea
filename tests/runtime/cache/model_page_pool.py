"""A page pool as plain sets, one page at a time."""

from collections import Counter
from collections.abc import Iterable


class PoolModel:
    """What `PagePool` should say. A page is free unless used, or released but still named."""

    def __init__(self, num_pages: int) -> None:
        self.pages = set(range(1, num_pages + 1))
        self.used: set[int] = set()
        self.released_after: dict[int, int] = {}
        self.holds: Counter[int] = Counter()
        self.acknowledged_step = -1

    @property
    def quarantined(self) -> set[int]:
        """Released pages that a step or a transfer may still touch."""
        return {
            page
            for page, step in self.released_after.items()
            if step > self.acknowledged_step or self.holds[page] > 0
        }

    @property
    def free(self) -> set[int]:
        """Pages that may be handed out."""
        return self.pages - self.used - self.quarantined

    def allocate(self, page_ids: Iterable[int]) -> None:
        """The pool handed out these pages; they must have been free."""
        taken = set(page_ids)
        assert taken <= self.free, f"{taken - self.free} were handed out but are not free"
        self.used |= taken
        for page in taken:
            self.released_after.pop(page, None)

    def release(self, page_ids: Iterable[int], after_step: int) -> None:
        """Note that these pages came back while `after_step` was the last step sent."""
        for page in page_ids:
            self.used.remove(page)
            self.released_after[page] = after_step
