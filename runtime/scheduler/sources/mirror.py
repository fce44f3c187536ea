"""Which pages a node's L2 holds, as its HostMemory has told. A hint: a lease or a pull decides."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from raydix.ids import PageKey
from raydix.runtime.cache.page_key import KEY_BYTES, MIRROR_KEY_BYTES, ChainKeys, split_keys
from raydix.runtime.messages.mirror import MirrorUpdate


class KnownPages(Protocol):
    """What is known of the pages of chains."""

    def has_page(self, group: int, keys: ChainKeys, page: int) -> bool:
        """Whether page `page` of a chain with these keys is there for a group."""

    def count_resident(self, group: int, keys: ChainKeys, start: int, stop: int) -> int:
        """Pages of a group in [start, stop) that are there, up to the first gap."""


class MirrorNews(NamedTuple):
    """The short keys, concatenated, of pages that have come and that are gone."""

    came: bytes
    gone: bytes


class Mirror:
    """Owns: the short keys of the pages that one node's L2 holds, as far as is known."""

    def __init__(self, num_groups: int) -> None:
        """Know no page of `num_groups` KV groups."""
        self._groups: list[set[bytes]] = [set() for _ in range(num_groups)]
        self._expected: list[set[bytes]] = [set() for _ in range(num_groups)]
        """The keys among them that were never told: their publication is under way."""

    def __len__(self) -> int:
        """The number of pages of all KV groups."""
        return sum(map(len, self._groups))

    def take_all(self) -> list[set[bytes]]:
        """Forget all keys; returns those of each group, for the caller to free piece by piece."""
        former, self._groups = self._groups, [set() for _ in self._groups]
        self._expected = [set() for _ in self._expected]
        return former

    def told(self, group: int) -> set[bytes]:
        """The short keys of a KV group's pages that were told to be there; a copy."""
        return self._groups[group] - self._expected[group]

    def _news(
        self, update: MirrorUpdate, ready: list[PageKey], dropped: list[PageKey]
    ) -> MirrorNews:
        """What an update, which is yet to be followed, says of pages that was not told before."""
        known, expected = self._groups[update.group], self._expected[update.group]
        came, gone = update.ready, update.dropped
        # As a rule all that comes was expected, or is new, and all that goes was told of. That is
        # found out at once, and then the bytes are handed on as they are.
        if not (expected.issuperset(ready) or known.isdisjoint(ready)):
            came = b"".join([key for key in ready if key not in known or key in expected])
        if not (known.issuperset(dropped) and expected.isdisjoint(dropped)):
            gone = b"".join([key for key in dropped if key in known and key not in expected])
        return MirrorNews(came, gone)

    def is_told(self, group: int, key: bytes) -> bool:
        """Whether this page of a group was told to be there: its publication is no mere hope."""
        short = key[:MIRROR_KEY_BYTES]
        return short in self._groups[group] and short not in self._expected[group]

    def has_page(self, group: int, keys: ChainKeys, page: int) -> bool:
        """Whether page `page` of a chain with these keys is there for a group."""
        return keys.short(page) in self._groups[group]

    def count_resident(self, group: int, keys: ChainKeys, start: int, stop: int) -> int:
        """Pages of a group in [start, stop) that are there, up to the first gap."""
        if start >= stop or not self.has_page(group, keys, start):
            return 0

        # Runs that double: as many pages are looked at as are there, and all are few runs.
        known = self._groups[group]
        page, width = start + 1, 1
        while page < stop:
            shorts = keys.shorts(page, min(page + width, stop))
            assert shorts, "there is a key for each page"
            if not known.issuperset(shorts):
                gap = next(index for index, short in enumerate(shorts) if short not in known)
                return page + gap - start
            page += len(shorts)
            width *= 2
        return stop - start

    def count_lacking(self, group: int, keys: ChainKeys, pages: Sequence[int]) -> int:
        """The number of these pages of a group, which are in order, that are not there."""
        if not pages:
            return 0
        first, known = pages[0], self._groups[group]
        shorts = keys.shorts(first, pages[-1] + 1)
        return sum(shorts[page - first] not in known for page in pages)

    def lacking(self, group: int, keys: Iterable[PageKey]) -> list[PageKey]:
        """The pages of a KV group, out of these, that are not there, in order."""
        known = self._groups[group]
        return [key for key in keys if key[:MIRROR_KEY_BYTES] not in known]

    def follow(self, update: MirrorUpdate) -> tuple[list[PageKey], list[PageKey]]:
        """Follow changes; returns short keys of what became READY and was dropped."""
        ready = split_keys(update.ready, MIRROR_KEY_BYTES)
        dropped = split_keys(update.dropped, MIRROR_KEY_BYTES)
        self._take(update.group, ready, dropped)
        return ready, dropped

    def follow_and_tell(
        self, update: MirrorUpdate
    ) -> tuple[list[PageKey], list[PageKey], MirrorNews]:
        """Do as `follow` does, and say besides what of that was not told before."""
        ready = split_keys(update.ready, MIRROR_KEY_BYTES)
        dropped = split_keys(update.dropped, MIRROR_KEY_BYTES)
        news = self._news(update, ready, dropped)
        self._take(update.group, ready, dropped)
        return ready, dropped, news

    def _take(self, group: int, ready: list[PageKey], dropped: list[PageKey]) -> None:
        known, expected = self._groups[group], self._expected[group]
        known.difference_update(dropped)
        known.update(ready)
        if expected:
            expected.difference_update(dropped, ready)

    def add(self, group: int, keys: bytes) -> None:
        """Note that these pages of a group are told to be published."""
        places = range(0, len(keys), KEY_BYTES)
        shorts = {keys[place : place + MIRROR_KEY_BYTES] for place in places}
        shorts -= self._groups[group]
        self._groups[group] |= shorts
        self._expected[group] |= shorts


@dataclass(frozen=True, slots=True)
class EitherHas:
    """What one L2 holds or another one: the first has what it lacks once that has been pulled."""

    own: KnownPages
    other: KnownPages

    def has_page(self, group: int, keys: ChainKeys, page: int) -> bool:
        """Whether page `page` of a chain with these keys is in either."""
        return self.own.has_page(group, keys, page) or self.other.has_page(group, keys, page)

    def count_resident(self, group: int, keys: ChainKeys, start: int, stop: int) -> int:
        """Pages of a group in [start, stop) of which each is in either, up to the first gap."""
        page = start
        while page < stop:
            num_more = self.own.count_resident(group, keys, page, stop)
            num_more = num_more or self.other.count_resident(group, keys, page, stop)
            if not num_more:
                break
            page += num_more
        return page - start
