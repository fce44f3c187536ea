"""Host pages of processes and connections that are gone, which may still be written or read.

The holders of a page are out of reach, yet what they have begun goes on: a GPU copies, a backend
writes. The page must not change hands before the last of them has let go:

                      `hold`, as a link broke           last `let_go`: the process has
                                                        exited, or its copies are drained
    FILLING, granted ------------------> QUARANTINED ------------------------> FREE
    READY, pinned ---------------------> READY, pinned ----------------------> READY, unpinned

A pinned page needs no state of its own: others may read what it holds, and nobody writes it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from raydix.errors import AccountingError
from raydix.ids import HostPageId, SchedulerName
from raydix.runtime.cache.host.index import HostIndex

Holder = int | SchedulerName
"""Who may still touch pages: a process, or a Scheduler by its earlier connections."""


@dataclass(slots=True)
class _Held:
    """What one group of holders left behind."""

    holders: set[Holder]
    """The holders that may still touch what was left behind."""
    quarantined: Sequence[HostPageId]
    pinned: Sequence[HostPageId]


class Quarantine:
    """Owns: pages that processes may still write (QUARANTINED) or read (pinned).

    A process holds on until it exits or says that it is drained. A Scheduler, by what was ordered
    over its earlier connections, holds on until it says over a later one that copies are drained,
    or has ended for good. What several hold is free when the last of them has let go.
    """

    def __init__(self, index: HostIndex) -> None:
        self._index = index
        self._held: dict[Holder, list[_Held]] = {}
        """What each holder may still touch."""

    @property
    def num_pages(self) -> int:
        """The number of QUARANTINED pages."""
        return sum(len(held.quarantined) for held in self._all())

    @property
    def num_pins(self) -> int:
        """The number of pins of READY pages."""
        return sum(len(held.pinned) for held in self._all())

    def _all(self) -> Collection[_Held]:
        return {id(held): held for each in self._held.values() for held in each}.values()

    def hold(
        self,
        holders: Collection[Holder],
        filling: Sequence[HostPageId],
        pinned: Sequence[HostPageId],
    ) -> None:
        """Take over FILLING pages and pins from holders that are out of reach.

        Raises AccountingError if there are none, as nobody would ever let go.
        """
        if not holders:
            raise AccountingError(
                f"{len(filling)} grants and {len(pinned)} pins are abandoned for no process"
            )

        for page_id in filling:
            self._index.quarantine(page_id)
        held = _Held(set(holders), filling, pinned)
        for holder in held.holders:
            self._held.setdefault(holder, []).append(held)

    def let_go(self, holder: Holder) -> None:
        """Free what this holder was the last to hold; one that holds nothing changes nothing."""
        for held in self._held.pop(holder, ()):
            held.holders.remove(holder)
            if held.holders:
                continue
            for page_id in held.quarantined:
                self._index.free(page_id)
            self._index.unpin(held.pinned)
