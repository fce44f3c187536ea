"""Which prefixes prompts had lately, to learn where chains part."""

import numpy as np
from numpy.typing import NDArray

from raydix.runtime.cache.page_key import KEY_BYTES

_Heads = NDArray[np.uint64]


class RecentPrefixes:
    """Owns: the pages that prompts began with lately, whether or not any tier still holds them.

    A key has one place, where a later one may replace it: so what is remembered is bounded, costs
    some ns a page, and most of it is what came last.
    """

    def __init__(self, num_places: int) -> None:
        self._heads: _Heads = np.zeros(num_places, dtype=np.uint64)
        """The first 8 bytes of one key per place; 0: no key. One key in 10^19 hashes to 0."""

    def num_shared(self, keys: bytes) -> int:
        """The most pages that a chain with these keys shares with a chain that was met."""
        heads = _heads_of(keys)
        # Keys are chained: where one was met, so were all before it, though some may be replaced.
        known = np.flatnonzero(self._heads[self._places(heads)] == heads)
        return int(known[-1]) + 1 if len(known) else 0

    def meet(self, keys: bytes) -> None:
        """Remember that a prompt begins with the pages that have these keys."""
        heads = _heads_of(keys)
        self._heads[self._places(heads)] = heads

    def _places(self, heads: _Heads) -> NDArray[np.intp]:
        return (heads % np.uint64(len(self._heads))).astype(np.intp)


def _heads_of(keys: bytes) -> _Heads:
    words = np.frombuffer(keys, dtype=np.uint64)
    return words[:: KEY_BYTES // words.itemsize]
