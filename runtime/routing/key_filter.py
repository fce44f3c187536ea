"""A set of page keys in 5.3 bytes a key, which tells at once which pages of a chain it has.

Of each key 32 bits are kept, in one of two buckets that the key says (Azar et al., "Balanced
allocations", 1994, with the buckets of a cuckoo filter: Fan et al., 2014; as buckets have eight
slots and are filled to three quarters, nothing is ever moved). A key that was never added is found
once in 3 * 10^8 times; one that was added is always found, until it is removed.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raydix.errors import AccountingError
from raydix.runtime.cache.page_key import KEY_BYTES

Words = NDArray[np.uint64]
"""The first 8 bytes of each key."""
_Slots = NDArray[np.uint32]
_Buckets = NDArray[np.int64]

_NUM_SLOTS = 8
_MAX_FILL = 0.75
"""The part of the slots that is taken when all keys are there: one in 10^4 then finds no slot."""
_MIX = np.uint64(0x9E3779B97F4A7C15)
"""An odd number, whose product depends on all bits of a key: 2^64 over the golden ratio."""
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_EMPTY = np.uint32(0)


def words_of(keys: bytes, width: int = KEY_BYTES) -> Words:
    """The words by which filters know concatenated keys of `width` bytes each."""
    words = np.frombuffer(keys, dtype="<u8")
    return words[:: width // words.itemsize]


@dataclass(frozen=True, slots=True)
class HashedKeys:
    """Keys with all that filters of any size ask of them: it is computed once for many filters."""

    words: Words
    marks: _Slots
    """What is kept of each key: never 0."""
    halves: NDArray[np.uint64]
    """What chooses the two buckets of each key: shape (2, keys)."""

    def __len__(self) -> int:
        return len(self.words)

    def part(self, start: int, stop: int | None = None) -> "HashedKeys":
        """The keys from `start` to before `stop`, or to the end."""
        if not start and (stop is None or stop >= len(self)):
            return self
        return self._pick(slice(start, stop))

    def those(self, are_meant: NDArray[np.bool_]) -> "HashedKeys":
        """The keys that a mask picks."""
        return self if are_meant.all() else self._pick(are_meant)

    def _pick(self, which: slice | NDArray[np.bool_]) -> "HashedKeys":
        return HashedKeys(self.words[which], self.marks[which], self.halves[:, which])


def hashed(words: Words) -> HashedKeys:
    """Compute what filters ask of keys."""
    marks = np.maximum(((words * _MIX) >> _HALF).astype(np.uint32), np.uint32(1))
    return HashedKeys(words, marks, np.array((words & _LOW, words >> _HALF)))


class KeyFilter:
    """Owns: which pages one tier of one node holds, as far as is known. A hint."""

    def __init__(self, max_keys: int) -> None:
        """Start empty, with room for `max_keys` keys, which is all that is ever taken."""
        self.max_keys = max_keys
        num_buckets = max(2, int(max_keys / (_NUM_SLOTS * _MAX_FILL)) + 1)
        self._num_buckets = np.uint64(num_buckets)
        self._slots: _Slots = np.zeros((num_buckets, _NUM_SLOTS), dtype=np.uint32)
        self._homeless: set[int] = set()
        """Keys of which both buckets are full."""
        self._num_housed = 0
        self.num_refused = 0
        """How many keys were left out, as there were more than were announced."""

    def __len__(self) -> int:
        return self._num_housed + len(self._homeless)

    @property
    def num_bytes(self) -> int:
        """The memory that the slots take."""
        return self._slots.nbytes

    def has(self, keys: HashedKeys) -> NDArray[np.bool_]:
        """Which of these keys are there."""
        found: NDArray[np.bool_] = np.zeros(len(keys), dtype=np.bool_)
        # Many filters are asked about each prompt, and some hold nothing.
        if self._num_housed:
            slots = self._slots.take(self._buckets(keys), axis=0)
            found = (slots == keys.marks[:, None]).any(axis=(0, 2))
        if self._homeless and not found.all():
            for place in np.flatnonzero(~found).tolist():
                found[place] = int(keys.words[place]) in self._homeless
        return found

    def add(self, words: Words) -> None:
        """Add keys; those that are there already stay as they are."""
        keys = hashed(np.unique(words))
        new = keys.those(~self.has(keys))
        room = self.max_keys - len(self)
        self.num_refused += max(0, len(new) - room)
        self.house(new.part(0, room))

    def house(self, keys: HashedKeys) -> None:
        """Add keys for which there is room, in ascending order, none of which is there."""
        words, marks, buckets = keys.words, keys.marks, self._buckets(keys)
        while len(words):
            # The emptier bucket of the two; of keys that chose the same one is housed in a turn.
            num_taken = (self._slots[buckets] != _EMPTY).sum(axis=2)
            chosen = np.where(num_taken[0] <= num_taken[1], buckets[0], buckets[1])
            is_full = num_taken.min(axis=0) == _NUM_SLOTS
            self._homeless.update(words[is_full].tolist())

            rows, first = np.unique(chosen[~is_full], return_index=True)
            turn = np.flatnonzero(~is_full)[first]
            self._slots[rows, (self._slots[rows] == _EMPTY).argmax(axis=1)] = marks[turn]
            self._num_housed += len(turn)

            is_left = ~is_full
            is_left[turn] = False
            words, marks, buckets = words[is_left], marks[is_left], buckets[:, is_left]

    def remove(self, words: Words) -> None:
        """Remove keys; those that are not there change nothing."""
        self.turn_out(hashed(np.unique(words)))

    def turn_out(self, keys: HashedKeys) -> None:
        """Remove keys, each of which is named once; those that are not there change nothing."""
        if self._homeless:
            gone = self._homeless.intersection(keys.words.tolist())
            self._homeless -= gone
            keys = keys.those(~np.isin(keys.words, np.array(list(gone), dtype=np.uint64)))
        if not self._num_housed:
            return

        for rows in self._buckets(keys):
            is_there = self._slots[rows] == keys.marks[:, None]
            found = np.flatnonzero(is_there.any(axis=1))
            self._slots[rows[found], is_there[found].argmax(axis=1)] = _EMPTY
            self._num_housed -= len(found)

    def _buckets(self, keys: HashedKeys) -> _Buckets:
        """The two buckets of each key: shape (2, keys)."""
        return ((keys.halves * self._num_buckets) >> _HALF).astype(np.int64)

    def check(self) -> None:
        """Raise AccountingError unless as many slots are taken as are counted."""
        num_taken = int(np.count_nonzero(self._slots))
        if num_taken != self._num_housed or len(self) > self.max_keys:
            raise AccountingError(
                f"{num_taken} slots are taken and {self._num_housed} counted, of {self.max_keys}"
            )
