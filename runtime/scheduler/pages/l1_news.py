"""What followers of the caches are told of the L1 of one lane."""

from collections.abc import Iterator, Sequence

import numpy as np

from raydix.ids import PageKey
from raydix.runtime.cache.page_key import MIRROR_KEY_BYTES, TOKEN_BYTES, short_keys
from raydix.runtime.cache.page_pools import PageIds
from raydix.runtime.cache.radix_forest import RadixForest
from raydix.runtime.cache.radix_node import Victim
from raydix.runtime.messages.kv_events import (
    PagesRemoved,
    PagesStored,
    ShortKeys,
    Tier,
    TierCleared,
    TokenRun,
)
from raydix.runtime.scheduler.page_news import PageNews
from raydix.runtime.scheduler.request.chain import Chain
from raydix.runtime.scheduler.settings import SchedulerSettings

BoolArray = np.ndarray[tuple[int], np.dtype[np.bool_]]
"""One truth for each page of a run."""
_MIN_SALTS = 64
"""The number of salts up to which none is forgotten."""


class L1News:
    """Owns: from which salts the chains of a lane's L1 start, and tells of the pages of the tree.

    What a page holds is told with its KV group that needs all pages, the first of them; where all
    look back over windows, with each.
    """

    def __init__(
        self, settings: SchedulerSettings, news: PageNews, lane: int, forest: RadixForest
    ) -> None:
        self._news, self._lane, self._forest = news, lane, forest
        self._page_bytes = settings.page_size * TOKEN_BYTES
        reaches, groups = settings.reaches, range(settings.num_groups)
        self._describing = {reaches.index(None)} if None in reaches else set(groups)
        self._order = sorted(groups, key=lambda group: group not in self._describing)
        """The KV groups, those first of which it is told what their pages hold."""
        self._salts: dict[PageKey, str | None] = {}
        """The salt of each identity that chains start from, or have started from of late."""
        self._most_salts = _MIN_SALTS

    def inserted(self, chain: Chain, start: int, own: PageIds, kept: PageIds) -> None:
        """Tell which of the given pages of a chain, from `start` on, the tree has taken over."""
        self._note_salt(chain)
        if not self._news.is_followed or not len(own[0]):
            return
        stop = start + len(own[0])
        keys, parent = short_keys(chain.keys(stop, max(0, start - 1))), None
        if start:
            parent, keys = keys[:MIRROR_KEY_BYTES], keys[MIRROR_KEY_BYTES:]
        if kept is own:
            # Nothing of it was there before.
            taken = [ids != 0 for ids in own]
        else:
            taken = [(ids != 0) & (ids == in_tree) for ids, in_tree in zip(own, kept, strict=True)]
        packed = chain.packed_pages(start, stop)
        for event in self._stored(taken, keys, packed, parent, chain.cache_salt):
            self._news.note(event)

    def removed(self, victims: Sequence[Victim]) -> None:
        """Tell which pages have left the tree."""
        if not self._news.is_followed:
            return
        for group in self._order:
            lost = [_chosen(short_keys(each.keys), each.page_ids[group] != 0) for each in victims]
            keys = ShortKeys(b"".join(lost))
            if keys:
                event = PagesRemoved(tier=Tier.L1, lane=self._lane, group=group, keys=keys)
                self._news.note(event)

    def cleared(self) -> None:
        """Tell that all pages are gone, with the ranks that had them."""
        if self._forest.num_nodes:
            self._news.note(TierCleared(tier=Tier.L1, lane=self._lane))

    def state(self) -> Iterator[PagesStored]:
        """Say what the tree has, heads of chains before their tails."""
        for identity, node in self._forest.runs():
            assert node.parent is not None, "roots have no pages"
            parent = short_keys(node.parent.last_key) if node.start else None
            has = [ids != 0 for ids in node.page_ids]
            salt = self._salts.get(identity)
            yield from self._stored(has, short_keys(node.keys), node.edge, parent, salt)

    def _stored(
        self,
        has: Sequence[BoolArray],
        keys: bytes,
        packed: bytes,
        parent: bytes | None,
        salt: str | None,
    ) -> Iterator[PagesStored]:
        """Tell of a run of a chain, of which each KV group has the pages that `has` says."""
        for group in self._order:
            if group not in self._describing:
                chosen = _chosen(keys, has[group])
                if chosen:
                    yield self._event(group, chosen, None)
                continue

            for first, stop in _runs(has[group]):
                start, end = first * MIRROR_KEY_BYTES, stop * MIRROR_KEY_BYTES
                before = keys[start - MIRROR_KEY_BYTES : start] if first else parent
                run = TokenRun(
                    parent=None if before is None else ShortKeys(before),
                    packed_tokens=packed[first * self._page_bytes : stop * self._page_bytes],
                    cache_salt=salt,
                )
                yield self._event(group, keys[start:end], run)

    def _event(self, group: int, keys: bytes, run: TokenRun | None) -> PagesStored:
        return PagesStored(
            tier=Tier.L1, lane=self._lane, group=group, keys=ShortKeys(keys), run=run
        )

    def _note_salt(self, chain: Chain) -> None:
        if chain.identity in self._salts:
            return
        self._salts[chain.identity] = chain.cache_salt
        if len(self._salts) > self._most_salts:
            kept = {root.last_key for root in self._forest.roots} | {chain.identity}
            self._salts = {key: salt for key, salt in self._salts.items() if key in kept}
            self._most_salts = _MIN_SALTS + 2 * len(self._salts)


def _chosen(keys: bytes, is_chosen: BoolArray) -> bytes:
    """The short keys of the pages that are chosen."""
    if np.count_nonzero(is_chosen) == len(is_chosen):
        return keys
    starts = (np.flatnonzero(is_chosen) * MIRROR_KEY_BYTES).tolist()
    return b"".join([keys[start : start + MIRROR_KEY_BYTES] for start in starts])


def _runs(is_chosen: BoolArray) -> Iterator[tuple[int, int]]:
    """The runs of chosen pages, each from its first to behind its last."""
    if np.count_nonzero(is_chosen) == len(is_chosen):
        yield 0, len(is_chosen)
        return
    padded = np.concatenate(([False], is_chosen, [False]))
    borders = np.flatnonzero(padded[1:] != padded[:-1]).tolist()
    yield from zip(borders[::2], borders[1::2], strict=True)
