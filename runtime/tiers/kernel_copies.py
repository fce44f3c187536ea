"""Page copies that a GPU carries out by itself, from and to registered slabs of the arena."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raydix.kernels.pages.copy_engine import MIN_PIECE_BYTES, CopyEngine, has_copy_engine
from raydix.kernels.pages.page_codec import Codec
from raydix.kernels.pages.page_copy import (
    ALIGNMENT_BYTES,
    CopyDirection,
    CopySegment,
    PackedCopies,
    PagePairs,
    compile_copies,
    copy_pages,
    pack_copies,
    piece_bytes,
)
from raydix.kernels.pages.quantised_copy import compile_quantised_copies, copy_quantised_pages
from raydix.runtime.cache.host.arena_geometry import ArenaGeometry
from raydix.runtime.config.kv_layout import OBJECT_HEADER_BYTES
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.tiers.transfers import Direction, LayerCopy, Transfer

_DIRECTIONS = {Direction.LOAD: CopyDirection.TO_POOL, Direction.BACKUP: CopyDirection.TO_ARENA}


def is_aligned(shard: KvShard, pools: Sequence[Tensor]) -> bool:
    """Whether the layers of all pages, here and in the arena, can be copied in whole words."""
    in_pools = [pool.stride(1) * pool.element_size() for pool in pools]
    in_arena = [shard.layer_bytes(group) for group in range(len(pools))]
    offsets = [shard.byte_range(group).start for group in range(len(pools))]
    return not any(figure % ALIGNMENT_BYTES for figure in (*in_pools, *in_arena, *offsets))


def compile_page_copies(pools: Sequence[Tensor], codec: Codec) -> None:
    """Launch every variant of the kernels by which these pools' pages are copied, over no pages."""
    if codec is Codec.NONE:
        compile_copies(pools[0].device)
        return
    for pool in pools:
        compile_quantised_copies(pool, codec)


class KernelCopies:
    """Enqueues the runs of transfers, each as one kernel or one call of the copy engine.

    The copy engine is faster for large pieces. With a codec it is always a kernel, which encodes or
    restores: one for each KV group of a run.
    """

    def __init__(
        self, shard: KvShard, pools: Sequence[Tensor], slabs: Tensor, geometry: ArenaGeometry
    ) -> None:
        """`pools`: of `make_pools`, aligned. `slabs`: uint8, the arena from its first slab on."""
        codec = shard.layout.codec
        self._shard = shard
        self._codec = codec
        self._pools = pools
        self._slabs = slabs
        self._geometry = geometry

        # Compiled now, or the first load would wait for it.
        self._engine = CopyEngine() if codec is Codec.NONE and has_copy_engine() else None
        compile_page_copies(pools, codec)

    def enqueue(self, transfer: Transfer, runs: Sequence[Sequence[LayerCopy]]) -> Iterator[None]:
        """Enqueue run after run on the current stream; yields after each.

        All slabs of the transfer are registered.
        """
        pages = {
            group: PagePairs(
                page_ids=pairs.page_ids, arena_offsets=self._offsets(group, pairs.host_page_ids)
            )
            for group, pairs in transfer.groups.items()
        }
        segments = [self._segments(run, pages) for run in runs]
        direction = _DIRECTIONS[transfer.direction]

        if self._codec is not Codec.NONE:
            yield from self._enqueue_quantised(segments, direction)
            return

        if not any(segments):
            # Other ranks copy all of it.
            yield from (None for _ in segments)
            return

        # Only the last run may be shorter.
        first = next(run for run in segments if run)
        smallest_bytes = min(piece_bytes(segment) for segment in first)
        if self._engine is not None and smallest_bytes >= MIN_PIECE_BYTES[direction]:
            for run_segments in segments:
                if run_segments:
                    self._engine.copy_pages(run_segments, self._slabs, direction)
                yield
            return

        packed = pack_copies(segments)
        table = self._table(packed)
        for launch in packed.launches:
            if launch.num_segments:
                copy_pages(table, launch, self._slabs, direction)
            yield

    def _enqueue_quantised(
        self, segments: list[list[CopySegment]], direction: CopyDirection
    ) -> Iterator[None]:
        """A launch for each segment: heads of KV groups may differ."""
        packed = pack_copies([[segment] for run in segments for segment in run])
        table, launches = self._table(packed), iter(packed.launches)
        for run in segments:
            for segment in run:
                copy_quantised_pages(
                    table, next(launches), self._slabs, direction, segment.pool, self._codec
                )
            yield

    def _table(self, packed: PackedCopies) -> Tensor:
        return (
            torch.from_numpy(packed.words).pin_memory().to(self._pools[0].device, non_blocking=True)
        )

    def _offsets(self, group: int, host_page_ids: NDArray[np.int32]) -> NDArray[np.int64]:
        slabs, indices = np.divmod(host_page_ids.astype(np.int64), self._geometry.pages_per_slab)
        return (
            slabs * self._geometry.slab_bytes
            + indices * self._geometry.page_bytes[group]
            + OBJECT_HEADER_BYTES
        )

    def _segments(self, run: Sequence[LayerCopy], pages: dict[int, PagePairs]) -> list[CopySegment]:
        """One segment for each group of which this rank has pages to copy.

        Its layers are neighbours, as a run leaves no layer out.
        """
        segments = []
        groups = {copy.group for copy in run if len(pages[copy.group].page_ids)}
        for group in sorted(groups):
            # In the order of layers, so that the first one begins the segment.
            copies = [copy for copy in run if copy.group == group]
            segments.append(
                CopySegment(
                    pool=self._pools[group],
                    pages=pages[group],
                    first_layer=copies[0].index,
                    num_layers=len(copies),
                    canonical_layer_bytes=self._shard.layer_bytes(group),
                    rank_offset_bytes=self._shard.byte_range(group).start,
                    codec=self._codec,
                )
            )
        return segments
