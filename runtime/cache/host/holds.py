"""Host pages of processes and connections that are gone, which may still be written or read."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from raydix.ids import HostPageId
from raydix.runtime.cache.host.index import HostIndex


@dataclass(slots=True)
class _Held:
    quarantined: list[HostPageId] = field(default_factory=list)
    pinned: list[HostPageId] = field(default_factory=list)


class Quarantine:
    """Owns: pages that a process may still write (QUARANTINED) or read (pinned), by holder.

    The holder is the process that must exit or say that it is drained, or None: earlier connections
    of the Scheduler, until it says that copies are drained.
    """

    def __init__(self, index: HostIndex) -> None:
        self._index = index
        self._held: dict[int | None, _Held] = {}

    @property
    def num_pages(self) -> int:
        """QUARANTINED pages."""
        return sum(len(held.quarantined) for held in self._held.values())

    @property
    def num_pins(self) -> int:
        """Pins of READY pages."""
        return sum(len(held.pinned) for held in self._held.values())

    def hold(
        self, pid: int | None, filling: Sequence[HostPageId], pinned: Sequence[HostPageId]
    ) -> None:
        """Take over FILLING pages and pins from a holder that is gone."""
        for page_id in filling:
            self._index.quarantine(page_id)
        held = self._held.setdefault(pid, _Held())
        held.quarantined.extend(filling)
        held.pinned.extend(pinned)

    def let_go(self, pid: int | None) -> None:
        """The holder touches nothing any more; one that holds nothing changes nothing."""
        held = self._held.pop(pid, _Held())
        for page_id in held.quarantined:
            self._index.free(page_id)
        self._index.unpin(held.pinned)
