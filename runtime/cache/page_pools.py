"""The page pools of one L1: one per KV group, used together."""

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from raydix.runtime.cache.page_key import KEY_BYTES
from raydix.runtime.cache.page_pool import PagePool
from raydix.runtime.messages.arrays import Int32Array, empty, frozen

PageIds = tuple[Int32Array, ...]
"""One id per page of a run, in each KV group; 0, the padding page, where a group has nothing."""


def num_pages_of(page_ids: PageIds) -> int:
    """The number of pages of a run, whatever part of it a group holds."""
    return max([len(ids) for ids in page_ids])


def pages_between(page_ids: PageIds, start: int, stop: int | None = None) -> PageIds:
    """Pages [start, stop) of a run, to its end by default."""
    return tuple([ids[start:stop] for ids in page_ids])


def spread(
    page_ids: PageIds, places: Sequence[Sequence[int]], start: int, num_pages: int
) -> PageIds:
    """A run of pages from `start` on, of which each group has those at its `places` alone."""
    pairs = zip(page_ids, places, strict=True)
    return tuple(
        [
            ids if len(ids) == num_pages else _spread(ids, each, start, num_pages)
            for ids, each in pairs
        ]
    )


def _spread(page_ids: Int32Array, places: Sequence[int], start: int, num_pages: int) -> Int32Array:
    run = np.zeros(num_pages, dtype=np.int32)
    run[np.asarray(places, dtype=np.intp) - start] = page_ids
    return frozen(run)


def require_lengths(num_pages: int, num_groups: int, page_ids: PageIds, keys: bytes) -> None:
    """Raise ValueError unless there is an id in each group, and a key, for each page."""
    lengths = [len(ids) for ids in page_ids]
    if lengths != [num_pages] * num_groups or len(keys) != num_pages * KEY_BYTES:
        raise ValueError(
            f"page ids per group {lengths} and {len(keys)} bytes of keys; expected "
            f"{num_groups} x {num_pages} ids and {num_pages * KEY_BYTES} bytes"
        )


def no_pages(num_groups: int) -> PageIds:
    """An empty run."""
    return (empty(),) * num_groups


def join_columns(runs: Sequence[PageIds]) -> Int32Array:
    """One column of several runs: run after run, and of each run group after group."""
    columns = list(itertools.chain.from_iterable(runs))
    return frozen(np.concatenate(columns)) if columns else empty()


class PagePools:
    """Owns: one `PagePool` per KV group.

    Pages are taken from all groups or from none.
    """

    def __init__(self, num_pages: Sequence[int]) -> None:
        """Start with `num_pages` usable pages per KV group, all free."""
        self._pools = tuple(PagePool(pages) for pages in num_pages)

    @property
    def num_groups(self) -> int:
        """The number of KV groups."""
        return len(self._pools)

    def group(self, group: int) -> PagePool:
        """The pool of one group, to be looked at."""
        return self._pools[group]

    @property
    def acknowledged_step(self) -> int:
        """The last step that every rank of the lane has acknowledged."""
        return self._pools[0].acknowledged_step

    def count(self, what: Callable[[PagePool], int]) -> tuple[int, ...]:
        """A figure of each group's pool."""
        return tuple([what(pool) for pool in self._pools])

    def has_free(self, num_pages: Sequence[int]) -> bool:
        """Whether each group has so many free pages."""
        return all(num <= pool.num_free for num, pool in zip(num_pages, self._pools, strict=True))

    def allocate(self, num_pages: Sequence[int]) -> PageIds | None:
        """Take so many free pages of each group; None, and no change, if one has fewer."""
        if not self.has_free(num_pages):
            return None
        pairs = zip(num_pages, self._pools, strict=True)
        taken = [pool.allocate(num) for num, pool in pairs]
        return tuple([page_ids for page_ids in taken if page_ids is not None])

    def release(self, page_ids: PageIds, *, after_step: int) -> None:
        """Give pages back as `PagePool.release` does, but for those that a group does not hold."""
        for pool, ids in zip(self._pools, page_ids, strict=True):
            present = _present(ids)
            if len(present):
                pool.release(present, after_step=after_step)

    def hold(self, page_ids: PageIds) -> None:
        """Keep pages that a transfer in flight names, until `unhold`."""
        for pool, ids in zip(self._pools, page_ids, strict=True):
            pool.hold(_present(ids))

    def unhold(self, page_ids: PageIds) -> None:
        """End one hold of each page."""
        for pool, ids in zip(self._pools, page_ids, strict=True):
            pool.unhold(_present(ids))

    def settle(self, acknowledged_step: int) -> None:
        """Note that every rank of the lane has acknowledged every step up to this one."""
        for pool in self._pools:
            pool.settle(acknowledged_step)

    def check(self) -> None:
        """Raise AccountingError unless every pool's invariants hold."""
        for pool in self._pools:
            pool.check()


def _present(page_ids: Int32Array) -> Int32Array:
    return page_ids if page_ids.all() else page_ids[page_ids > 0]
