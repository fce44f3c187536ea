"""The pages of one GPU pool, and a quarantine lest a released one be reused too early.

           allocate            release, a step sent before it is under way
    FREE ------------> USED ----------------------------------------> QUARANTINED
     ^                   |                                              |     |
     |<-- release, no step, no copy                    settle, no copy  |     | settle, a copy
     |                                                                  |     | names the page
     |<-----------------------------------------------------------------+     v
     +<----------------------------------------------------------------- SETTLED
                          unhold, by the last copy

Steps read and write pages without a word to the pool, so their end is told by number (`settle`).
Copies hold the pages that they name, one hold each (`hold`, `unhold`), in any state but FREE.
"""

import heapq
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from raydix.errors import AccountingError
from raydix.runtime.messages.arrays import Int32Array


class GpuPageState(IntEnum):
    """The state of a GPU page."""

    FREE = 0
    USED = 1
    QUARANTINED = 2
    """The page was released, but a step sent before the release is not acknowledged."""
    SETTLED = 3
    """The page was released and its steps are acknowledged, but a load or backup still names it."""


# Of an enum numpy asks first whether it is an array, which takes as long as ten comparisons.
_USED, _SETTLED = np.uint8(GpuPageState.USED), np.uint8(GpuPageState.SETTLED)


class PagePool:
    """Owns: which pages of one GPU pool are free, in use or quarantined.

    Page ids run from 1 to `num_pages`; page 0 is the padding page and is never handed out. A
    released page is handed out again only once every step sent before its release is acknowledged
    and no transfer in flight names it.
    """

    def __init__(self, num_pages: int) -> None:
        if num_pages < 1:
            raise ValueError(f"num_pages is {num_pages}; expected at least 1")
        self.num_pages = num_pages
        self.num_free = num_pages
        self.num_quarantined = 0

        self._free = np.arange(num_pages, 0, -1, dtype=np.int32)
        """The free ids, as a stack: they are `_free[:num_free]`."""
        self._states: NDArray[np.uint8] = np.zeros(num_pages + 1, dtype=np.uint8)
        self._num_holds: NDArray[np.int32] = np.zeros(num_pages + 1, dtype=np.int32)
        self._places: NDArray[np.int64] = np.zeros(num_pages + 1, dtype=np.int64)
        """Scratch memory of `_has_duplicates`."""
        self._quarantine: list[tuple[int, int, Int32Array]] = []
        """The released pages as a heap of last step, serial number and page ids."""
        self._num_releases = 0
        self.acknowledged_step = -1
        """The last acknowledged step. A released page that no later step or copy names is free."""

    @property
    def num_used(self) -> int:
        """The number of pages that are handed out and not released."""
        return self.num_pages - self.num_free - self.num_quarantined

    @property
    def num_held(self) -> int:
        """The number of pages that a load or backup in flight names."""
        return int(np.count_nonzero(self._num_holds))

    def allocate(self, num_pages: int) -> Int32Array | None:
        """Take `num_pages` free pages, all or none: None, and no change, if fewer are free."""
        if num_pages < 0:
            raise ValueError(f"num_pages is {num_pages}; expected 0 or more")
        if num_pages > self.num_free:
            return None
        rest = self.num_free - num_pages
        page_ids: Int32Array = self._free[rest : self.num_free][::-1].copy()
        self.num_free = rest
        self._states[page_ids] = GpuPageState.USED
        return page_ids

    def release(self, page_ids: Int32Array, *, after_step: int) -> None:
        """Give pages back. They are free once `after_step`, the last step sent, is acknowledged.

        Raises AccountingError, and changes nothing, if a page is not in use or is named twice.
        """
        self._require_used(page_ids, "released")
        if self._has_duplicates(page_ids):
            raise AccountingError(f"a page is released twice in one call: {page_ids.tolist()}")

        self.num_quarantined += len(page_ids)
        if after_step <= self.acknowledged_step:
            self._end_quarantine(page_ids)
            return
        # The serial number keeps the heap from comparing arrays where steps are equal.
        self._states[page_ids] = GpuPageState.QUARANTINED
        self._num_releases += 1
        heapq.heappush(self._quarantine, (after_step, self._num_releases, page_ids.copy()))

    def hold(self, page_ids: Int32Array) -> None:
        """Keep pages that a load or backup in flight names: no release frees them before `unhold`.

        Holds are counted. Raises AccountingError, and changes nothing, if a page is not in use.
        """
        self._require_used(page_ids, "held")
        np.add.at(self._num_holds, page_ids, 1)

    def unhold(self, page_ids: Int32Array) -> None:
        """End one hold of each page.

        Raises AccountingError, and changes nothing, if a page is not held so often.
        """
        np.subtract.at(self._num_holds, page_ids, 1)
        if len(page_ids) and int(self._num_holds[page_ids].min()) < 0:
            np.add.at(self._num_holds, page_ids, 1)
            raise AccountingError(f"pages are not held that are to be unheld: {page_ids.tolist()}")
        settled = page_ids[(self._num_holds[page_ids] == 0) & (self._states[page_ids] == _SETTLED)]
        if len(settled):
            self._free_pages(np.unique(settled))

    def settle(self, acknowledged_step: int) -> None:
        """Note that every rank of the lane has acknowledged every step up to this one.

        An older step changes nothing.
        """
        self.acknowledged_step = max(self.acknowledged_step, acknowledged_step)
        # Releases come with older steps, too, so the queue is a heap and not in order of arrival.
        while self._quarantine and self._quarantine[0][0] <= self.acknowledged_step:
            self._end_quarantine(heapq.heappop(self._quarantine)[2])

    def check(self) -> None:
        """Raise AccountingError unless every page is in exactly one state and all counts agree."""
        counts = np.bincount(self._states[1:], minlength=len(GpuPageState))

        num_queued = sum(len(page_ids) for _, _, page_ids in self._quarantine)
        waiting = int(counts[GpuPageState.QUARANTINED] + counts[GpuPageState.SETTLED])
        figures = (
            f"{self.num_pages} pages: {self.num_free} free, {self.num_used} used, "
            f"{self.num_quarantined} quarantined; "
            f"states say {counts.tolist()} (free, used, quarantined, settled), the queue "
            f"{num_queued}"
        )

        if (counts[GpuPageState.FREE], counts[GpuPageState.USED], waiting) != (
            self.num_free,
            self.num_used,
            self.num_quarantined,
        ):
            raise AccountingError(f"page counts disagree with page states: {figures}")
        if num_queued != counts[GpuPageState.QUARANTINED]:
            raise AccountingError(f"the quarantine queue disagrees with page states: {figures}")

        self._check_free(figures)
        num_settled = 0
        if self._num_holds.any():
            held_states = self._states[self._num_holds > 0]
            num_settled = int(np.count_nonzero(held_states == GpuPageState.SETTLED))
            if self._num_holds.min() < 0 or (held_states == GpuPageState.FREE).any():
                raise AccountingError(f"free pages are held, or holds are negative: {figures}")
        if num_settled != counts[GpuPageState.SETTLED]:
            raise AccountingError(f"settled pages without a hold are not free: {figures}")

    def _check_free(self, figures: str) -> None:
        free = self._free[: self.num_free]
        # Each page as often as its state says. Page 0 has a state, and is never free.
        are_free = self._states == GpuPageState.FREE
        are_free[0] = False
        if free.min(initial=1) < 1 or not np.array_equal(
            np.bincount(free, minlength=len(are_free)), are_free
        ):
            raise AccountingError(
                f"the free list holds pages twice or pages that are not free: {figures}"
            )

    def _require_used(self, page_ids: Int32Array, verb: str) -> None:
        if not len(page_ids):
            return
        if page_ids.min() < 1 or page_ids.max() > self.num_pages:
            raise AccountingError(
                f"pages {verb} are outside 1..{self.num_pages}: {page_ids.tolist()}"
            )
        wrong = page_ids[self._states[page_ids] != _USED]
        if len(wrong):
            states = [GpuPageState(state).name for state in self._states[wrong]]
            raise AccountingError(
                f"pages {verb} are not in use: {dict(zip(wrong.tolist(), states, strict=True))}"
            )

    def _has_duplicates(self, page_ids: Int32Array) -> bool:
        order = np.arange(len(page_ids))
        self._places[page_ids] = order
        return bool((self._places[page_ids] != order).any())

    def _end_quarantine(self, page_ids: Int32Array) -> None:
        held = self._num_holds[page_ids] > 0
        if held.any():
            self._states[page_ids[held]] = GpuPageState.SETTLED
            page_ids = page_ids[~held]
        self._free_pages(page_ids)

    def _free_pages(self, page_ids: Int32Array) -> None:
        self._states[page_ids] = GpuPageState.FREE
        self._free[self.num_free : self.num_free + len(page_ids)] = page_ids
        self.num_free += len(page_ids)
        self.num_quarantined -= len(page_ids)
