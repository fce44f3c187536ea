"""When chains that were looked up are marked as used."""

from collections.abc import Sequence

from raydix.ids import PageKey, UserId
from raydix.runtime.cache.host.events import FromScheduler, HostEvent
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.messages.host import CancelLookup, LeasePages, Lookup

_MAX_PAGES = 2048
"""The most pages that wait: touching so many takes a ms or two, thousands of chains seconds."""


class ChainTouches:
    """Owns: chains that were used and are not marked so yet.

    Nobody sees that before a page makes way for another, so it need not hold up the answer to a
    lookup, nor the lease that usually follows, for which somebody waits.
    """

    def __init__(self, index: HostIndex) -> None:
        self._index = index
        self._chains: list[tuple[Sequence[PageKey], UserId]] = []
        self._num_pages = 0
        """The number of pages of the chains that wait."""

    @property
    def has_work(self) -> bool:
        """Whether chains wait that a `Tick` would touch."""
        return bool(self._chains)

    def add(self, keys: Sequence[PageKey], user: UserId) -> None:
        """Note that a user has a chain in use, or several have used it."""
        if self._num_pages >= _MAX_PAGES:
            self.catch_up()
        self._chains.append((keys, user))
        self._num_pages += len(keys)

    def prepare_for(self, event: HostEvent) -> None:
        """Catch up before an event that may evict a page."""
        match event:
            case FromScheduler(_, Lookup() | LeasePages() | CancelLookup()):
                pass
            case _:
                self.catch_up()

    def catch_up(self) -> None:
        """Touch all chains that wait, in the order of their use."""
        for keys, user in self._chains:
            for group in range(self._index.num_groups):
                self._index.touch_chain(group, keys, user)
        self._chains.clear()
        self._num_pages = 0
