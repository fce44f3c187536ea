"""The names of READY host pages, in dicts that never pause for long to grow."""

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from raydix.ids import HostPageId, PageKey
from raydix.runtime.cache.host.lru_lists import Items

_NUM_SHARDS = 64


def there_of(found: Sequence[HostPageId | None]) -> Items:
    """The pages among these, which were sought, that are there."""
    return np.array([page_id for page_id in found if page_id is not None], dtype=np.int64)


class PageNames:
    """Owns: which page holds each key of a group, in many small dicts that each grow quickly."""

    def __init__(self) -> None:
        self._shards: list[dict[PageKey, HostPageId]] = [{} for _ in range(_NUM_SHARDS)]
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[PageKey]:
        return chain.from_iterable(self._shards)

    def page_ids(self) -> Iterator[HostPageId]:
        """The ids of all pages that have a name; O(pages)."""
        for shard in self._shards:
            yield from shard.values()

    def find(self, key: PageKey) -> HostPageId | None:
        """The page that holds `key`."""
        return self._shards[key[-1] % _NUM_SHARDS].get(key)

    def find_all(self, keys: Sequence[PageKey]) -> list[HostPageId | None]:
        """The page that holds each of these keys; None where there is none."""
        shards = self._shards
        return [shards[key[-1] % _NUM_SHARDS].get(key) for key in keys]

    def add(self, key: PageKey, page_id: HostPageId) -> None:
        """Give a page a name that no page has."""
        self._shards[key[-1] % _NUM_SHARDS][key] = page_id
        self._length += 1

    def remove(self, key: PageKey) -> None:
        """Remove a name."""
        del self._shards[key[-1] % _NUM_SHARDS][key]
        self._length -= 1
