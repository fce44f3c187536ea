"""Pages sorted by when they go, with no operation that touches them all."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import chain, pairwise
from operator import itemgetter
from typing import Generic, TypeVar

from raydix.errors import AccountingError
from raydix.runtime.cache.eviction_policies import EvictionKey

T = TypeVar("T")
OrderEntry = tuple[EvictionKey, int, T]
"""An entry: a key, a ticket, and what goes. Tickets differ, so what goes is never compared."""
OrderPlace = tuple[EvictionKey, int]
"""A place in the order: a key and a ticket."""

_last_of = itemgetter(-1)


def _place_of(entry: OrderEntry[T]) -> OrderPlace:
    return entry[:2]


def _last_place_of(chunk: list[OrderEntry[T]]) -> OrderPlace:
    return chunk[-1][:2]


class SortedEntries(Generic[T]):
    """Entries in ascending order, in chunks: a change bisects, and moves entries of one chunk.

    A heap, or a sorted run with a heap of newcomers, is as fast on average; but to sort 65,536
    newcomers, or to drop outdated entries beside as many, took 9 to 65 ms at once (2026-11-22).
    """

    _MAX_CHUNK_ENTRIES = 512

    def __init__(self) -> None:
        self._chunks: list[list[OrderEntry[T]]] = []  # none is empty

    def __len__(self) -> int:
        return sum(map(len, self._chunks))

    def __iter__(self) -> Iterator[OrderEntry[T]]:
        return chain.from_iterable(self._chunks)

    def first(self) -> OrderEntry[T] | None:
        """The smallest entry."""
        return self._chunks[0][0] if self._chunks else None

    def last(self) -> OrderEntry[T] | None:
        """The largest entry."""
        return self._chunks[-1][-1] if self._chunks else None

    def first_from(self, place: OrderPlace) -> OrderEntry[T] | None:
        """The smallest entry at this place or behind it."""
        index = bisect_left(self._chunks, place, key=_last_place_of)
        if index == len(self._chunks):
            return None
        chunk = self._chunks[index]
        return chunk[bisect_left(chunk, place, key=_place_of)]

    def add(self, entry: OrderEntry[T]) -> None:
        """Put an entry where it belongs."""
        chunks = self._chunks

        # Most newcomers are the largest yet: they fill the last chunk, and leave it full.
        if not chunks or entry > chunks[-1][-1]:
            if not chunks or len(chunks[-1]) >= self._MAX_CHUNK_ENTRIES:
                chunks.append([])
            chunks[-1].append(entry)
            return

        index = bisect_left(chunks, entry, key=_last_of)
        chunk = chunks[index]
        insort(chunk, entry)
        if len(chunk) > self._MAX_CHUNK_ENTRIES:
            half = len(chunk) // 2
            chunks.insert(index + 1, chunk[half:])
            del chunk[half:]

    def remove(self, entry: OrderEntry[T]) -> None:
        """Take out an entry that is in."""
        chunks = self._chunks

        # What goes is mostly the first.
        if chunks[0][0] == entry:
            index = 0
            del chunks[0][0]
        else:
            index = bisect_left(chunks, entry, key=_last_of)
            position = bisect_left(chunks[index], entry)
            assert chunks[index][position] == entry, "only what is in can be taken out"
            del chunks[index][position]
        self._merge(index)

    def _merge(self, index: int) -> None:
        """Mend a chunk that has shrunk: two neighbours fill half a chunk, or they become one."""
        chunks = self._chunks
        if not chunks[index]:
            del chunks[index]
            return

        for left in (index, index - 1):
            if 0 <= left < len(chunks) - 1 and self._is_little(chunks[left], chunks[left + 1]):
                chunks[left] += chunks.pop(left + 1)

    def _is_little(self, left: list[OrderEntry[T]], right: list[OrderEntry[T]]) -> bool:
        return len(left) + len(right) <= self._MAX_CHUNK_ENTRIES // 2

    def check(self) -> None:
        """Raise AccountingError unless the entries ascend, in chunks of fair sizes."""
        lengths = [len(chunk) for chunk in self._chunks]
        are_in_bounds = all(1 <= length <= self._MAX_CHUNK_ENTRIES for length in lengths)
        are_merged = not any(self._is_little(*pair) for pair in pairwise(self._chunks))
        if not are_in_bounds or not are_merged:
            raise AccountingError(
                f"chunks of {lengths} entries; expected 1 to {self._MAX_CHUNK_ENTRIES} each, "
                f"and two neighbours to have more than half of that"
            )
        if any(earlier >= later for earlier, later in pairwise(self)):
            raise AccountingError(f"{len(self)} entries of the eviction order are not sorted")
