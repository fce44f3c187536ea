"""Which objects a bounded store keeps."""

import sys
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from raydix.errors import AccountingError

TRIM_OBJECTS = 64
"""The number of objects that are given up at a time, so that nobody waits long for the lock."""


class BytesLru:
    """Owns: the sizes and order of use of a store's objects, and room for those being written.

    Above its high mark, 31/32 of `max_bytes`, `trim` gives up objects down to its low mark, 15/16.
    A writer that comes to `max_bytes` all the same gives up what it needs itself.
    """

    def __init__(self, max_bytes: int | None) -> None:
        self._max_bytes = sys.maxsize if max_bytes is None else max_bytes
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._total_bytes = 0
        self._reserved_bytes = 0
        self._is_trimming = False

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, name: str) -> bool:
        return name in self._sizes

    def known(self, names: Iterable[str]) -> set[str]:
        """The objects among `names` that are there."""
        return set(filter(self._sizes.__contains__, names))

    def names(self) -> tuple[str, ...]:
        """All objects, the least recently used first."""
        return tuple(self._sizes)

    def size(self, name: str) -> int | None:
        """Bytes of an object; None if it is unknown."""
        return self._sizes.get(name)

    @property
    def total_bytes(self) -> int:
        """Bytes of all objects, without those being written."""
        return self._total_bytes

    @property
    def is_over(self) -> bool:
        """Whether more is taken than there is room, as objects that were given up came back."""
        return self._total_bytes + self._reserved_bytes > self._max_bytes

    def reserve(self, sizes: Sequence[int]) -> tuple[int, dict[str, int]]:
        """Hold room for the first of some objects; returns how many, and what is given up."""
        room_bytes = self._max_bytes - self._reserved_bytes
        num_objects = len(sizes)
        while sum(sizes[:num_objects]) > room_bytes:
            num_objects -= 1
        self._reserved_bytes += sum(sizes[:num_objects])
        return num_objects, self._give_up(self._max_bytes, len(self._sizes))

    def release(self, size_bytes: int) -> None:
        """Give back room that `reserve` held: objects are written, or will not be."""
        self._reserved_bytes -= size_bytes

    def trim(self) -> dict[str, int]:
        """Give up at most TRIM_OBJECTS, down to the low mark; returns none once it is reached."""
        low_bytes = self._max_bytes * 15 // 16
        mark_bytes = low_bytes if self._is_trimming else self._max_bytes * 31 // 32
        self._is_trimming = self._total_bytes + self._reserved_bytes > mark_bytes
        return self._give_up(low_bytes, TRIM_OBJECTS) if self._is_trimming else {}

    def _give_up(self, target_bytes: int, max_objects: int) -> dict[str, int]:
        """Take the least recently used off, until at most `target_bytes` are taken."""
        victims: dict[str, int] = {}
        while (
            self._total_bytes + self._reserved_bytes > target_bytes
            and len(victims) < max_objects
            and self._sizes
        ):
            name, size_bytes = self._sizes.popitem(last=False)
            self._total_bytes -= size_bytes
            victims[name] = size_bytes
        return victims

    def add(self, sizes: Mapping[str, int]) -> None:
        """Enter objects as the most recently used, in this order, in place of their namesakes."""
        for name in self._sizes.keys() & sizes:
            self.remove(name)
        self._sizes.update(sizes)
        self._total_bytes += sum(sizes.values())

    def remove(self, name: str) -> None:
        """Forget an object; nothing happens if it is unknown."""
        self._total_bytes -= self._sizes.pop(name, 0)

    def touch(self, names: Iterable[str]) -> list[str]:
        """Mark objects as used, in this order; returns those that are unknown."""
        unknown: list[str] = []
        for name in names:
            if name in self._sizes:
                self._sizes.move_to_end(name)
            else:
                unknown.append(name)
        return unknown

    def check(self) -> None:
        """Raises AccountingError if the bytes on record are not the sum, or room is below zero."""
        total = sum(self._sizes.values())
        if total != self._total_bytes or self._reserved_bytes < 0:
            raise AccountingError(
                f"objects have {total} bytes; {self._total_bytes} on record; "
                f"{self._reserved_bytes} bytes are reserved"
            )
