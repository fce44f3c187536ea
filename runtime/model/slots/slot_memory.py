"""Tokens and block tables of all slots on the device, in one tensor.

So whatever a plan changes is one launch: a request is admitted between two steps, and the device
waits meanwhile.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from raydix.runtime.messages.arrays import Int32Array
from raydix.runtime.model.staging.columns import INT32, INT64, ColumnForm, Layout
from raydix.runtime.model.staging.pinned_copies import PinnedRing

T = TypeVar("T", bound=np.generic)

_WRITTEN_TOGETHER = 1 << 14
"""Numbers of one launch; more take several."""
_ALIGNED = 64
"""Numbers of 256 bytes, of which each tensor begins at a multiple, as if it was by itself."""


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Numbers that are written one behind another, so many from each place on."""

    places: NDArray[np.int64]
    counts: NDArray[np.int64]
    numbers: Int32Array

    @classmethod
    def one(cls, place: int, numbers: Int32Array) -> "Runs":
        """All from one place on."""
        return cls(np.array([place]), np.array([len(numbers)]), numbers)


class SlotMemory:
    """Owns: `tokens_XL`, int32 [slots, tokens], and of each KV group `tables_XN`, int32 [slots,
    pages]; all zero at first."""

    def __init__(
        self,
        num_slots: int,
        *,
        num_tokens: int,
        num_pages: int,
        num_groups: int,
        device: torch.device,
    ) -> None:
        self._num_tokens = num_tokens
        self._num_pages = num_pages
        sizes = [num_slots * num_tokens, *[num_slots * num_pages] * num_groups]
        stops = list(accumulate(-(-size // _ALIGNED) * _ALIGNED for size in sizes))
        self._table_places = stops[:-1]
        self._numbers = torch.zeros(stops[-1], dtype=torch.int32, device=device)
        self._ring = PinnedRing(_layout(_WRITTEN_TOGETHER).size, device)

        self.tokens_XL = self._numbers[: sizes[0]].view(num_slots, num_tokens)
        self.tables_XN = tuple(
            self._numbers[place : place + num_slots * num_pages].view(num_slots, num_pages)
            for place in self._table_places
        )

    def tokens_place(self, slot: int) -> int:
        """Where a slot's tokens begin."""
        return slot * self._num_tokens

    def table_place(self, group: int, slot: int) -> int:
        """Where a slot's block table of a KV group begins."""
        return self._table_places[group] + slot * self._num_pages

    def table_places(self, group: int, slots: Int32Array) -> NDArray[np.int64]:
        """The same of several slots."""
        return self._table_places[group] + slots.astype(np.int64) * self._num_pages

    def write(self, runs: Sequence[Runs]) -> None:
        """Enqueue writes, which must not overlap."""
        if not runs:
            return
        numbers = _joined([each.numbers for each in runs]).astype(np.int32, copy=False)
        counts = _joined([each.counts for each in runs])
        places = _joined([each.places for each in runs])
        if counts.max(initial=0) > 1 or len(numbers) != len(places):
            places = np.repeat(places, counts) + run_offsets(counts)
        for start in range(0, len(numbers), _WRITTEN_TOGETHER):
            some = slice(start, start + _WRITTEN_TOGETHER)
            self._write(places[some], numbers[some])

    def _write(self, places: NDArray[np.int64], numbers: Int32Array) -> None:
        layout = _layout(len(numbers))
        packed = layout.pack({"places_W": places, "numbers_W": numbers})
        with self._ring.lend(packed) as staged:
            columns = layout.split(staged)
            self._numbers.scatter_(0, columns["places_W"], columns["numbers_W"])


def _joined(parts: list[NDArray[T]]) -> NDArray[T]:
    """One array of several; of one that array, as most plans have but one run to write."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


@lru_cache(maxsize=256)
def _layout(num_numbers: int) -> Layout:
    """The layout of so many numbers and their places.

    Kept, as most plans change as many as others: to make it takes as long as to pack them.
    """
    return Layout(
        {
            "places_W": ColumnForm(INT64, (num_numbers,)),
            "numbers_W": ColumnForm(INT32, (num_numbers,)),
        }
    )


def run_offsets(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """0..count-1 for each count, one run after another."""
    total = int(counts.sum())
    ends = np.cumsum(counts)
    return np.arange(total, dtype=np.int64) - np.repeat(ends - counts, counts)
