"""Rows of state on the device, one for each request that runs on a lane."""

import heapq

from raydix.ids import Slot


class Slots:
    """Owns: which slots of a lane are free, and which of them the device is to forget."""

    def __init__(self, num_slots: int) -> None:
        self._free = [Slot(slot) for slot in range(num_slots)]
        self._removed: list[int] = []
        """Slots that the device is to forget with the next plan."""

    @property
    def num_free(self) -> int:
        """The number of slots that nobody has."""
        return len(self._free)

    def take(self) -> Slot:
        """Take the first free slot."""
        return heapq.heappop(self._free)

    def note_told(self, slot: Slot) -> None:
        """Note that the device knows who had a slot that is given back: it is to forget that."""
        self._removed.append(slot)

    def give_back(self, slot: Slot) -> None:
        """Give a slot back."""
        heapq.heappush(self._free, slot)

    def take_removed(self) -> list[int]:
        """The slots that the device forgets with the next plan."""
        removed, self._removed = self._removed, []
        return removed
