# mypy: disable-error-code="no-untyped-def"
"""Copies of pages between L1 and L2 by a kernel that reads or writes the registered arena.

One launch moves many pages. A piece is a run of bytes that is contiguous on both sides: some layers
of a whole page, or one layer of a rank's heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from raydix.kernels.pages.page_codec import Codec, encoded_head_bytes

WORD_BYTES = 8
ALIGNMENT_BYTES = 16
"""The width of a thread's load or store, to which pieces are aligned on both sides."""
SEGMENT_FIELDS = 8
_BLOCK_WORDS = 512
_SMALL_PIECE_BYTES = 32 << 10


class CopyDirection(Enum):
    """The side that a copy writes: the pool or the arena."""

    TO_POOL = "L2 to L1"
    TO_ARENA = "L1 to L2"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PagePairs:
    """Pages of one KV group on both sides; entry i of one belongs to entry i of the other."""

    page_ids: NDArray[np.int32]
    arena_offsets: NDArray[np.int64]
    """The bytes from the start of the arena to each canonical page, past its header."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CopySegment:
    """Some layers of one KV group, in all pages of `pages`."""

    pool: Tensor
    """The pool of a KV group, [P, L, ...], contiguous: what this rank holds of each layer."""
    pages: PagePairs
    first_layer: int
    num_layers: int
    """The number of layers from `first_layer` on, which is counted within the KV group."""
    canonical_layer_bytes: int
    """The size of one layer in the canonical page, with the heads of all ranks."""
    rank_offset_bytes: int
    """The offset of this rank's heads within a layer of the canonical page."""
    codec: Codec = Codec.NONE
    """The codec of the canonical page. Encoded segments are copied by `quantised_copy`, and have
    pools [P, L, H, 2, S, D].
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One launch: `num_segments` rows of the table from `first_segment` on."""

    first_segment: int
    num_segments: int
    smallest_piece_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedCopies:
    """What the kernel reads: copy `words` to the device, then launch, in any order and stream."""

    words: NDArray[np.int64]
    launches: tuple[Launch, ...]


def pack_copies(launches: Sequence[Sequence[CopySegment]]) -> PackedCopies:
    """Lay out the segments of several launches in one table, with lists of pages behind them.

    Equal lists are stored once. Raises ValueError if a segment is empty, misaligned or outside its
    pool's layers.
    """
    segments = [segment for launch in launches for segment in launch]
    start = len(segments) * SEGMENT_FIELDS
    parts: list[NDArray[np.int64]] = []
    starts: dict[tuple[int, int], int] = {}
    rows = np.empty((len(segments), SEGMENT_FIELDS), dtype=np.int64)
    for row, segment in zip(rows, segments, strict=True):
        check_segment(segment)
        key = (id(segment.pages), _page_bytes(segment.pool))
        if key not in starts:
            starts[key] = start
            parts.append(_page_words(segment))
            start += parts[-1].size
        row[:] = _segment_row(segment, starts[key])

    counts = [len(launch) for launch in launches]
    return PackedCopies(
        words=np.concatenate([rows.reshape(-1), *parts]),
        launches=tuple(
            Launch(
                first_segment=sum(counts[:index]),
                num_segments=count,
                smallest_piece_bytes=min((piece_bytes(segment) for segment in launch), default=0),
            )
            for index, (count, launch) in enumerate(zip(counts, launches, strict=True))
        ),
    )


def choose_num_ctas(direction: CopyDirection, smallest_piece_bytes: int) -> int:
    """Just enough to saturate PCIe on an H200 (2026-11-21).

    More only queue, and all other memory traffic queues with them: attention beside a copy to the
    arena took 1.03 times its own time with 4 CTAs, 2.0 with 16 and 4.0 with 32.
    """
    match direction:
        case CopyDirection.TO_POOL:
            return 12
        case CopyDirection.TO_ARENA:
            return 4 if smallest_piece_bytes >= _SMALL_PIECE_BYTES else 6


def copy_pages(table: Tensor, launch: Launch, arena: Tensor, direction: CopyDirection) -> None:
    """Enqueue one launch on the current stream.

    `table`: `PackedCopies.words` on the device. `arena`: uint8 view of all of the arena, registered
    with CUDA. The caller keeps the pools alive. Raises ValueError if a tensor has another dtype or
    is not contiguous and aligned.
    """
    if table.dtype != torch.int64 or table.dim() != 1 or not table.is_contiguous():
        raise ValueError(
            f"The table is {table.dtype} {tuple(table.shape)}; expected contiguous int64 words."
        )
    if (
        arena.dtype != torch.uint8
        or not arena.is_contiguous()
        or arena.data_ptr() % ALIGNMENT_BYTES
    ):
        raise ValueError(
            f"The arena is {arena.dtype}; expected contiguous uint8, aligned to {ALIGNMENT_BYTES} "
            f"bytes."
        )
    if launch.num_segments < 1:
        raise ValueError(f"A launch of {launch.num_segments} segments; expected at least one.")

    whole_words = arena[: arena.numel() // WORD_BYTES * WORD_BYTES].view(torch.int64)
    _copy_pieces[(choose_num_ctas(direction, launch.smallest_piece_bytes),)](
        table,
        whole_words,
        launch.first_segment,
        launch.num_segments,
        SEGMENT_FIELDS=SEGMENT_FIELDS,
        TO_POOL=direction is CopyDirection.TO_POOL,
        BLOCK=_BLOCK_WORDS,
        STAGES=4,
        num_warps=4,
    )


def compile_copies(device: torch.device) -> None:
    """Launch every variant of the kernel over no pages, so that no copy waits for a compiler."""
    table = torch.zeros(SEGMENT_FIELDS, dtype=torch.int64, device=device)
    arena = torch.zeros(ALIGNMENT_BYTES, dtype=torch.uint8, pin_memory=device.type == "cuda")
    for direction in CopyDirection:
        copy_pages(
            table, Launch(first_segment=0, num_segments=1, smallest_piece_bytes=0), arena, direction
        )


def piece_places(segment: CopySegment) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Each piece's address in the pool and offset in the arena, and the bytes of a piece."""
    pieces = np.arange(_num_pieces(segment))
    in_pool = _page_words(segment)[::2, None] * WORD_BYTES + pieces * _layer_bytes(segment.pool)
    in_arena = segment.pages.arena_offsets[:, None] + pieces * segment.canonical_layer_bytes
    pool_start, arena_start = _starts(segment)
    return (
        (in_pool + pool_start).reshape(-1),
        (in_arena + arena_start).reshape(-1),
        piece_bytes(segment),
    )


def piece_bytes(segment: CopySegment) -> int:
    """Bytes of one piece in the pool."""
    return _piece_words(segment) * WORD_BYTES


def check_segment(segment: CopySegment) -> None:
    """Raise ValueError if the segment is empty, misaligned or outside its pool's layers."""
    pool, pages = segment.pool, segment.pages
    if not pool.is_contiguous() or pool.dim() < 2:
        raise ValueError(
            f"The pool {tuple(pool.shape)} is not contiguous; expected [pages, layers, ...]."
        )
    stop = segment.first_layer + segment.num_layers
    if segment.first_layer < 0 or segment.num_layers < 1 or stop > pool.shape[1]:
        raise ValueError(
            f"Layers {segment.first_layer} to {stop} are not in the pool's {pool.shape[1]} layers."
        )
    if not len(pages.page_ids) or len(pages.page_ids) != len(pages.arena_offsets):
        raise ValueError(
            f"{len(pages.page_ids)} page ids for {len(pages.arena_offsets)} offsets in the arena."
        )

    layer_bytes, arena_bytes = _layer_bytes(pool), _arena_layer_bytes(segment)
    if (
        segment.rank_offset_bytes < 0
        or segment.rank_offset_bytes + arena_bytes > segment.canonical_layer_bytes
    ):
        raise ValueError(
            f"{arena_bytes} bytes from {segment.rank_offset_bytes} on are outside a canonical "
            f"layer of {segment.canonical_layer_bytes} bytes."
        )
    figures = (
        layer_bytes,
        arena_bytes,
        segment.rank_offset_bytes,
        segment.canonical_layer_bytes,
        pool.data_ptr(),
    )
    if (
        any(figure % ALIGNMENT_BYTES for figure in figures)
        or (pages.arena_offsets % ALIGNMENT_BYTES).any()
    ):
        raise ValueError(
            f"A piece of {layer_bytes} bytes is not aligned to {ALIGNMENT_BYTES} bytes on both "
            f"sides."
        )


def _layer_bytes(pool: Tensor) -> int:
    return pool.stride(1) * pool.element_size()


def _arena_layer_bytes(segment: CopySegment) -> int:
    """The size of this rank's heads within a layer of the canonical page, in bytes."""
    if segment.codec is Codec.NONE:
        return _layer_bytes(segment.pool)
    num_heads, _, page_size, head_dim = segment.pool.shape[2:]
    return num_heads * encoded_head_bytes(page_size * head_dim)


def _page_bytes(pool: Tensor) -> int:
    return pool.stride(0) * pool.element_size()


def _page_words(segment: CopySegment) -> NDArray[np.int64]:
    """Interleaved: where each page begins in the pool and in the arena."""
    pool_offsets = segment.pages.page_ids.astype(np.int64) * _page_bytes(segment.pool)
    return np.stack((pool_offsets, segment.pages.arena_offsets), axis=1).reshape(-1) // WORD_BYTES


def _num_pieces(segment: CopySegment) -> int:
    """Pieces per page: one if the layers touch on both sides."""
    return 1 if segment.canonical_layer_bytes == _arena_layer_bytes(segment) else segment.num_layers


def _piece_words(segment: CopySegment) -> int:
    return _layer_bytes(segment.pool) * segment.num_layers // _num_pieces(segment) // WORD_BYTES


def _starts(segment: CopySegment) -> tuple[int, int]:
    """Address in the pool, and byte offset in the canonical page, of page 0's first piece."""
    pool_start = segment.pool.data_ptr() + segment.first_layer * _layer_bytes(segment.pool)
    return (
        pool_start,
        segment.first_layer * segment.canonical_layer_bytes + segment.rank_offset_bytes,
    )


def _segment_row(segment: CopySegment, pages_start: int) -> tuple[int, ...]:
    pool_start, arena_start = _starts(segment)
    return (
        pool_start,
        arena_start // WORD_BYTES,
        _layer_bytes(segment.pool) // WORD_BYTES,
        segment.canonical_layer_bytes // WORD_BYTES,
        _num_pieces(segment),
        _piece_words(segment),
        pages_start,
        len(segment.pages.page_ids),
    )


@triton.jit(do_not_specialize=["first_segment", "num_segments"])
def _copy_pieces(
    table_ptr,
    arena_ptr,
    first_segment,
    num_segments,
    SEGMENT_FIELDS: tl.constexpr,
    TO_POOL: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """A fixed grid walks (page, piece, block) of each segment; sizes are in int64 words.

    The arena's lines are of 128 bytes, its pages aligned to 64. So reads of it are rotated by 8
    words within the block where that lets every warp start on a line: on an H200 they reach 0.93 of
    a plain copy, and 0.79 if they start in the middle of one (2026-11-21). Writes do not care.
    """
    for segment in range(first_segment, first_segment + num_segments):
        row_ptr = table_ptr + segment * SEGMENT_FIELDS
        pool_ptr = tl.load(row_ptr).to(tl.pointer_type(tl.int64), bitcast=True)
        arena_start = tl.load(row_ptr + 1)
        pool_stride = tl.load(row_ptr + 2)
        arena_stride = tl.load(row_ptr + 3)
        num_pieces = tl.load(row_ptr + 4).to(tl.int32)
        piece_words = tl.load(row_ptr + 5).to(tl.int32)
        pages_ptr = table_ptr + tl.load(row_ptr + 6)
        num_pages = tl.load(row_ptr + 7).to(tl.int32)

        blocks = tl.cdiv(piece_words, BLOCK)
        total = num_pages * num_pieces * blocks
        for work in tl.range(tl.program_id(0), total, tl.num_programs(0), num_stages=STAGES):
            piece = work // blocks % num_pieces
            page = work // blocks // num_pieces
            pool_word = tl.load(pages_ptr + 2 * page) + piece * pool_stride
            arena_word = tl.load(pages_ptr + 2 * page + 1) + arena_start + piece * arena_stride
            pool_piece = tl.multiple_of(pool_ptr + pool_word, 16)
            arena_piece = tl.multiple_of(arena_ptr + arena_word, 16)
            lane = tl.arange(0, BLOCK)
            if TO_POOL:
                lane = (lane + (arena_piece.to(tl.int64) // 64 % 2).to(tl.int32) * 8) % BLOCK

            word = work % blocks * BLOCK + lane
            inside = word < tl.multiple_of(piece_words, 2)
            if TO_POOL:
                value = tl.load(arena_piece + word, mask=inside, cache_modifier=".cg")
                tl.store(pool_piece + word, value, mask=inside, cache_modifier=".cs")
            else:
                value = tl.load(pool_piece + word, mask=inside, cache_modifier=".cg")
                tl.store(arena_piece + word, value, mask=inside, cache_modifier=".cs")
