"""Page copies that a GPU carries out by itself, between its pools and the registered slabs of the arena."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raydix.kernels.copy_engine import MIN_PIECE_BYTES, CopyEngine, has_copy_engine
from raydix.kernels.page_copy import (
    ALIGNMENT_BYTES,
    CopyDirection,
    CopySegment,
    PackedCopies,
    PagePairs,
    compile_copies,
    copy_pages,
    pack_copies,
)
from raydix.runtime.cache.arena_geometry import ArenaGeometry
from raydix.runtime.cache.kv_layout import OBJECT_HEADER_BYTES
from raydix.runtime.tiers.transfers import Direction, LayerCopy, Transfer

_DIRECTIONS = {Direction.LOAD: CopyDirection.TO_POOL, Direction.BACKUP: CopyDirection.TO_ARENA}


def is_aligned(pools: Sequence[Tensor]) -> bool:
    """Are the layers of all pages such that whole words can be copied?"""
    return all(pool.stride(1) * pool.element_size() % ALIGNMENT_BYTES == 0 for pool in pools)


class KernelCopies:
    """Enqueues the runs of transfers: one kernel each, or one batched call of the copy engine if pieces are large.

    `pools`: as `make_pools` returns them, `is_aligned`. `slabs`: uint8 view of the arena from its first slab on.
    """

    def __init__(self, pools: Sequence[Tensor], slabs: Tensor, geometry: ArenaGeometry) -> None:
        self._pools = pools
        self._slabs = slabs
        self._geometry = geometry
        self._engine = CopyEngine() if has_copy_engine() else None
        compile_copies(pools[0].device)

    def enqueue(self, transfer: Transfer, runs: Sequence[Sequence[LayerCopy]]) -> Iterator[None]:
        """Enqueue run after run on the current stream, a side stream; yields after each. All slabs are registered."""
        pages = {
            group: PagePairs(page_ids=pairs.page_ids, arena_offsets=self._offsets(group, pairs.host_page_ids))
            for group, pairs in transfer.groups.items()
        }
        segments = [self._segments(run, pages) for run in runs]
        direction = _DIRECTIONS[transfer.direction]
        smallest_bytes = min(_piece_bytes(segment) for run in segments for segment in run)
        if self._engine is not None and smallest_bytes >= MIN_PIECE_BYTES[direction]:
            for run_segments in segments:
                self._engine.copy_pages(run_segments, self._slabs, direction)
                yield
            return
        packed = pack_copies(segments)
        table = self._table(packed)
        for launch in packed.launches:
            copy_pages(table, launch, self._slabs, direction)
            yield

    def _table(self, packed: PackedCopies) -> Tensor:
        return torch.from_numpy(packed.words).pin_memory().to(self._pools[0].device, non_blocking=True)

    def _offsets(self, group: int, host_page_ids: NDArray[np.int32]) -> NDArray[np.int64]:
        slabs, indices = np.divmod(host_page_ids.astype(np.int64), self._geometry.pages_per_slab)
        return slabs * self._geometry.slab_bytes + indices * self._geometry.page_bytes[group] + OBJECT_HEADER_BYTES

    def _segments(self, run: Sequence[LayerCopy], pages: dict[int, PagePairs]) -> list[CopySegment]:
        """One segment for the run's layers of each group: they touch, as a run leaves out no layer."""
        segments = []
        for group in sorted({copy.group for copy in run}):
            pool = self._pools[group]
            layer_bytes = pool.stride(1) * pool.element_size()
            starts = [copy.start for copy in run if copy.group == group]
            segments.append(
                CopySegment(
                    pool=pool,
                    pages=pages[group],
                    first_layer=min(starts) // layer_bytes,
                    num_layers=len(starts),
                    canonical_layer_bytes=layer_bytes,
                    rank_offset_bytes=0,
                )
            )
        return segments


def _piece_bytes(segment: CopySegment) -> int:
    return segment.num_layers * segment.canonical_layer_bytes
