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
        words = np.unique(words)
        words = words[~self.has(hashed(words))]
        for each in self._filters:
            room = each.max_keys - len(each)
            each.add(words[:room])
            words = words[room:]
        while len(words):
            self._filters.append(KeyFilter(2 * self._filters[-1].max_keys))
            room = self._filters[-1].max_keys
            self._filters[-1].add(words[:room])
            words = words[room:]

    def remove(self, words: Words) -> None:
        """Remove keys; those that are not there change nothing."""
        for each in self._filters:
            each.remove(words)

    def check(self) -> None:
        """Raise AccountingError unless each filter agrees with its count."""
        for each in self._filters:
            each.check()
