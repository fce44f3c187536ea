"""Which pages a node's L2 holds, as its HostMemory has told. A hint: a lease or a pull decides."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from raydix.ids import PageKey
from raydix.runtime.cache.page_key import KEY_BYTES, MIRROR_KEY_BYTES, split_keys
from raydix.runtime.messages.mirror import MirrorUpdate


class KnownPages(Protocol):
    """What is known of the pages of chains."""

    def has_page(self, group: int, keys: bytes, page: int) -> bool:
        """Whether page `page` of a chain with these keys is there for a group."""

    def count_resident(self, group: int, keys: bytes, start: int, stop: int) -> int:
        """Pages of a group in [start, stop) that are there, up to the first gap."""


class Mirror:
    """Owns: the short keys of the pages that one node's L2 holds, as far as is known."""

    def __init__(self, num_groups: int) -> None:
        """Know no page of `num_groups` KV groups."""
        self._groups: list[set[bytes]] = [set() for _ in range(num_groups)]

    def __len__(self) -> int:
        """The number of pages of all KV groups."""
        return sum(map(len, self._groups))

    def take_all(self) -> list[set[bytes]]:
        """Forget all keys; returns those of each group, for the caller to free piece by piece."""
        former, self._groups = self._groups, [set() for _ in self._groups]
        return former

    def has(self, group: int, key: bytes) -> bool:
        """Whether this page of a group is there."""
        return key[:MIRROR_KEY_BYTES] in self._groups[group]

    def has_page(self, group: int, keys: bytes, page: int) -> bool:
        """Whether page `page` of a chain with these keys is there for a group."""
        start = page * KEY_BYTES
        return keys[start : start + MIRROR_KEY_BYTES] in self._groups[group]

    def count_resident(self, group: int, keys: bytes, start: int, stop: int) -> int:
        """Pages of a group in [start, stop) that are there, up to the first gap."""
        places = range(start * KEY_BYTES, stop * KEY_BYTES, KEY_BYTES)
        shorts = [keys[place : place + MIRROR_KEY_BYTES] for place in places]
        # As a rule it has all, which is found out at once.
        known = self._groups[group]
        if known.issuperset(shorts):
            return len(shorts)
        return next(index for index, short in enumerate(shorts) if short not in known)

    def lacking(self, group: int, keys: Iterable[PageKey]) -> list[PageKey]:
        """The pages of a KV group, out of these, that are not there, in order."""
        known = self._groups[group]
        return [key for key in keys if key[:MIRROR_KEY_BYTES] not in known]

    def follow(self, update: MirrorUpdate) -> tuple[list[PageKey], list[PageKey]]:
        """Follow changes; returns short keys of what became READY and was dropped."""
        ready = split_keys(update.ready, MIRROR_KEY_BYTES)
        dropped = split_keys(update.dropped, MIRROR_KEY_BYTES)
        self._groups[update.group].difference_update(dropped)
        self._groups[update.group].update(ready)
        return ready, dropped

    def add(self, group: int, keys: bytes) -> None:
        """Note that these pages of a group are told to be published."""
        self._groups[group].update([key[:MIRROR_KEY_BYTES] for key in split_keys(keys)])


@dataclass(frozen=True, slots=True)
class EitherHas:
    """What one L2 holds or another one: the first has what it lacks once that has been pulled."""

    own: KnownPages
    other: KnownPages

    def has_page(self, group: int, keys: bytes, page: int) -> bool:
        """Whether page `page` of a chain with these keys is in either."""
        return self.own.has_page(group, keys, page) or self.other.has_page(group, keys, page)

    def count_resident(self, group: int, keys: bytes, start: int, stop: int) -> int:
        """Pages of a group in [start, stop) of which each is in either, up to the first gap."""
        page = start
        while page < stop:
            num_more = self.own.count_resident(group, keys, page, stop)
            num_more = num_more or self.other.count_resident(group, keys, page, stop)
            if not num_more:
                break
            page += num_more
        return page - start
