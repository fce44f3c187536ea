"""Room in L2 that requests claim for what L3 may bring them, until they have loaded it."""

from collections import Counter
from collections.abc import Iterable, KeysView, Sequence

from raydix.errors import AccountingError
from raydix.ids import RequestId

Pages = Sequence[bytes]
"""Pages of a chain, each named by its short key (16 bytes)."""


class Claims:
    """Owns: which pages of L2 are claimed, and by whom. One that several claim counts once."""

    def __init__(self) -> None:
        self._max_pages = 0
        self._claims: dict[RequestId, Pages] = {}
        self._num_claims: dict[bytes, int] = {}
        """How many requests claim each page, by short key."""
        self.num_times_freed = 0
        """How often a claim has ended or shrunk, or the room has grown. While this number stays the
        same, whatever had no room still has none.
        """

    @property
    def num_pages(self) -> int:
        """The number of pages that at least one request claims."""
        return len(self._num_claims)

    @property
    def names(self) -> KeysView[RequestId]:
        """The requests that claim pages."""
        return self._claims.keys()

    @property
    def chains(self) -> Iterable[Pages]:
        """The pages that each request claims, request by request."""
        return self._claims.values()

    def pages_of(self, name: RequestId) -> Pages:
        """The pages that one request claims."""
        return self._claims.get(name, ())

    def set_room(self, num_pages: int) -> None:
        """Allow so many pages to be claimed."""
        self.num_times_freed += num_pages > self._max_pages
        self._max_pages = num_pages

    def has_room(self, pages: Pages) -> bool:
        """Whether there is room to claim these pages beside those that are claimed already."""
        num_new = sum(page not in self._num_claims for page in pages)
        return not num_new or self.num_pages + num_new <= self._max_pages

    def put(self, name: RequestId, pages: Pages) -> None:
        """Replace a request's claim by these pages; without any pages the claim ends."""
        former = self._claims.pop(name, ())
        if pages:
            self._claims[name] = pages
        counts = self._num_claims
        for page in pages:
            counts[page] = counts.get(page, 0) + 1
        num_before = len(counts)
        for page in former:
            if counts[page] == 1:
                del counts[page]
            else:
                counts[page] -= 1
        # A claim that ends counts even if others claim the same pages.
        self.num_times_freed += len(counts) < num_before or (bool(former) and not pages)

    def check(self) -> None:
        """Raise AccountingError unless the claims add up."""
        counted = Counter(page for pages in self._claims.values() for page in pages)
        if counted != self._num_claims:
            raise AccountingError(
                f"{len(self._num_claims)} pages are claimed; the claims name {len(counted)}"
            )
