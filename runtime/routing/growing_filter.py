"""A set of page keys whose number nobody has told, in filters each twice as large as the last."""

import numpy as np
from numpy.typing import NDArray

from raydix.runtime.routing.key_filter import HashedKeys, KeyFilter, Words, hashed

_FIRST_KEYS = 4096


class GrowingFilter:
    """Owns: which pages one tier of one node holds, as far as is known. A hint.

    It takes the room of the most pages that there ever were, at most twice.
    """

    def __init__(self) -> None:
        self._filters = [KeyFilter(_FIRST_KEYS)]

    def __len__(self) -> int:
        return sum(map(len, self._filters))

    def has(self, keys: HashedKeys) -> NDArray[np.bool_]:
        """Which of these keys are there."""
        found = self._filters[0].has(keys)
        for each in self._filters[1:]:
            found |= each.has(keys)
        return found

    def add(self, words: Words) -> None:
        """Add keys; those that are there already stay as they are."""
        keys = hashed(np.unique(words))
        keys = keys.those(~self.has(keys))
        for each in self._filters:
            keys = _housed(each, keys)
        while len(keys):
            self._filters.append(KeyFilter(2 * self._filters[-1].max_keys))
            keys = _housed(self._filters[-1], keys)

    def remove(self, words: Words) -> None:
        """Remove keys; those that are not there change nothing."""
        keys = hashed(np.unique(words))
        for each in self._filters:
            each.turn_out(keys)

    def check(self) -> None:
        """Raise AccountingError unless each filter agrees with its count."""
        for each in self._filters:
            each.check()


def _housed(place: KeyFilter, keys: HashedKeys) -> HashedKeys:
    """Add the first of these keys, as many as there is room for; returns the others."""
    room = place.max_keys - len(place)
    if not room or not len(keys):
        return keys
    place.house(keys.part(0, room))
    return keys.part(room)
