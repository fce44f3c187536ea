"""What subscribers are told of a replica's caches, from what its Schedulers tell one after another.

A Scheduler that comes after another one tells first what there is. Subscribers hear of it no more
than the difference: what they were told stays told, and each page comes and goes once.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from raydix.runtime.cache.kv_index import KvIndex, Place
from raydix.runtime.cache.kv_wire import (
    MEDIA,
    BlockRemoved,
    BlockStored,
    WireEvent,
    block_hash,
    spec_of,
)
from raydix.runtime.cache.page_key import (
    MIRROR_KEY_BYTES,
    TOKEN_BYTES,
    split_keys,
    unpack_tokens,
)
from raydix.runtime.config.kv_layout import KvLayout
from raydix.runtime.messages.kv_events import (
    KvEvent,
    KvNews,
    PagesRemoved,
    PagesStored,
    Tier,
    TierCleared,
    TokenRun,
)

_MAX_GONE = 200_000
"""The most pages that no tier has any more of which it is kept what they hold: L2 and L3 lose all
of theirs with a link, and have them again a moment later.
"""
_MAX_BLOCKS = 1024
"""The most blocks of one event."""


@dataclass(frozen=True, slots=True)
class _Content:
    """What a page holds."""

    parent: bytes | None
    packed_tokens: bytes
    cache_salt: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Told:
    """What is told of one place: to the subscribers of its lane, or of all lanes."""

    lane: int | None
    event: WireEvent


class Publication:
    """Owns: which pages each place has, and what they hold.

    Subscribers are told of a page once it is known what it holds: in L1 at once, in L2 and L3 since
    it was in L1 for the first time.
    """

    def __init__(self, layout: KvLayout) -> None:
        """Know nothing, and wait for what the first Scheduler tells."""
        self._layout = layout
        self._index = KvIndex()
        self._contents: dict[bytes, _Content] = {}
        self._gone: dict[bytes, None] = {}
        """The pages that no place has, those that went first before the others."""
        self._before: dict[Place, dict[int, frozenset[bytes]]] | None = {}
        """What was told until the last Scheduler was lost, by KV group, while the present one has
        not told everything; None: it has.
        """

    def begin(self) -> None:
        """Begin anew with a Scheduler: what it tells first is all that there is."""
        if self._before is None:
            self._before = {
                place: {
                    group: frozenset(filter(self._contents.__contains__, keys))
                    for group, keys in self._index.groups(place).items()
                }
                for place in self._index.places
            }
        self._index = KvIndex()

    def follow(self, news: KvNews) -> list[Told]:
        """Take what the Scheduler tells; returns what subscribers are told.

        Raises AccountingError if something was lost on the way: `begin` with a new link then.
        """
        told: list[Told] = []
        for event in news.events:
            if self._before is None:
                told += self._take(event)
            else:
                self._index.follow(event)
                self._learn(event)
        if news.is_whole and self._before is not None:
            before, self._before = self._before, None
            told += self._difference(before)
        return told

    def state(self, lane: int) -> list[WireEvent]:
        """All that a subscriber of this lane knows if it has missed nothing."""
        if self._before is not None:
            known = self._before
        else:
            known = {place: self._index.groups(place) for place in self._index.places}
        return [
            event
            for place, groups in sorted(known.items(), key=_tier_order)
            if place[1] in (lane, None)
            for group, keys in groups.items()
            for event in self._stored(place[0], group, keys)
        ]

    def _take(self, event: KvEvent) -> Iterator[Told]:
        """Follow an event, and tell of what it changes."""
        match event:
            case PagesStored():
                self._index.follow(event)
                new = set(self._learn(event))
                keys = split_keys(event.keys, MIRROR_KEY_BYTES)
                for key in keys:
                    self._gone.pop(key, None)
                for stored in self._stored(event.tier, event.group, keys):
                    yield Told(event.lane, stored)
                if new:
                    yield from self._tell_elsewhere(event, new)
            case PagesRemoved():
                self._index.follow(event)
                gone = split_keys(event.keys, MIRROR_KEY_BYTES)
                yield from self._removed((event.tier, event.lane), event.group, gone)
                self._forget(gone)
            case TierCleared():
                place = event.tier, event.lane
                groups = self._index.groups(place)
                self._index.follow(event)
                for group, held in groups.items():
                    yield from self._removed(place, group, held)
                for held in groups.values():
                    self._forget(held)
            case _:
                assert_never(event)

    def _learn(self, event: KvEvent) -> Sequence[bytes]:
        """Note what pages hold; returns those of which it was not known."""
        if not isinstance(event, PagesStored) or event.run is None:
            return []
        keys = split_keys(event.keys, MIRROR_KEY_BYTES)
        new = [key for key in keys if key not in self._contents]
        self._contents.update(_contents(keys, event.run, self._layout.page_size))
        return new

    def _tell_elsewhere(self, event: PagesStored, new: set[bytes]) -> Iterator[Told]:
        """Tell of pages that other places have had, now that it is known what they hold."""
        for place in self._index.places:
            for group in range(len(self._layout.groups)):
                if (place, group) == ((event.tier, event.lane), event.group):
                    continue
                keys = [key for key in new if self._index.has(place, group, key)]
                for stored in self._stored(place[0], group, keys):
                    yield Told(place[1], stored)

    def _difference(self, before: dict[Place, dict[int, frozenset[bytes]]]) -> Iterator[Told]:
        """Tell what has changed since the last Scheduler was lost."""
        places = sorted({*before, *self._index.places}, key=lambda place: (place[0], place[1] or 0))
        for place in places:
            for group in range(len(self._layout.groups)):
                was = before.get(place, {}).get(group, frozenset())
                now = self._index.keys(place, group)
                yield from self._removed(place, group, was - now)
                for stored in self._stored(place[0], group, now - was):
                    yield Told(place[1], stored)
        self._gone.clear()
        self._forget([*self._contents])

    def _forget(self, keys: Iterable[bytes]) -> None:
        """Note that no place has these pages, where that is so; forget those that went long ago."""
        for key in keys:
            if key in self._contents and not self._index.has_anywhere(key):
                self._gone[key] = None
        while len(self._gone) > _MAX_GONE:
            oldest = next(iter(self._gone))
            del self._gone[oldest], self._contents[oldest]

    def _removed(self, place: Place, group: int, keys: Iterable[bytes]) -> Iterator[Told]:
        known = [key for key in keys if key in self._contents]
        medium = MEDIA[place[0]]
        for start in range(0, len(known), _MAX_BLOCKS):
            hashes = list(map(block_hash, known[start : start + _MAX_BLOCKS]))
            event = BlockRemoved(block_hashes=hashes, medium=medium, group_idx=group)
            yield Told(place[1], event)

    def _stored(self, tier: Tier, group: int, keys: Iterable[bytes]) -> Iterator[BlockStored]:
        """Tell of the pages among these of which it is known what they hold."""
        for run in _chains([key for key in keys if key in self._contents], self._contents):
            yield self._block_stored(tier, group, run)

    def _block_stored(self, tier: Tier, group: int, run: Sequence[bytes]) -> BlockStored:
        contents = [self._contents[key] for key in run]
        first = contents[0]
        salt = first.cache_salt
        extra: list[tuple[str] | None] | None = None
        if salt is not None and first.parent is None:
            extra = [(salt,), *[None] * (len(run) - 1)]
        kind, window = spec_of(self._layout.groups[group])
        return BlockStored(
            block_hashes=list(map(block_hash, run)),
            parent_block_hash=None if first.parent is None else block_hash(first.parent),
            token_ids=unpack_tokens(b"".join([content.packed_tokens for content in contents])),
            block_size=self._layout.page_size,
            lora_id=None,
            medium=MEDIA[tier],
            lora_name=None,
            extra_keys=extra,
            group_idx=group,
            kv_cache_spec_kind=kind,
            kv_cache_spec_sliding_window=window,
            cache_salt=salt,
        )


def _contents(keys: Sequence[bytes], run: TokenRun, page_size: int) -> dict[bytes, _Content]:
    width = page_size * TOKEN_BYTES
    parents = (run.parent, *keys)
    return {
        key: _Content(
            parents[page], run.packed_tokens[page * width : (page + 1) * width], run.cache_salt
        )
        for page, key in enumerate(keys)
    }


def _chains(keys: Sequence[bytes], contents: dict[bytes, _Content]) -> Iterator[list[bytes]]:
    """Divide pages into runs of which each is the parent of the next, parents before children."""
    among = set(keys)
    children: dict[bytes, list[bytes]] = {}
    pending: list[bytes] = []
    for key in keys:
        parent = contents[key].parent
        if parent is not None and parent in among:
            children.setdefault(parent, []).append(key)
        else:
            pending.append(key)
    while pending:
        run = [pending.pop()]
        while len(run) < _MAX_BLOCKS and (next_ones := children.get(run[-1])):
            run.append(next_ones[0])
            pending += next_ones[1:]
        if len(run) == _MAX_BLOCKS:
            pending += children.get(run[-1], [])
        yield run


def _tier_order(entry: tuple[Place, object]) -> tuple[str, int]:
    (tier, lane), _ = entry
    return tier, lane or 0
