# mypy: disable-error-code="no-untyped-def"
"""Copies of pages that are quantised in L2, encoded or restored on the way.

One launch moves many pages. The twins are `encode_pages` and `decode_pages` of
`reference.page_codec`, bit by bit but for the bits of a NaN.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from raydix.kernels.pages import page_codec
from raydix.kernels.pages.page_codec import Codec, encoded_head_bytes
from raydix.kernels.pages.page_copy import ALIGNMENT_BYTES, SEGMENT_FIELDS, CopyDirection, Launch

_LOW_BITS = tl.constexpr(page_codec.SCALE_LOW_BITS)
_SMALLEST = tl.constexpr(page_codec.SMALLEST_MAGNITUDE)
_NAN_BITS = tl.constexpr(page_codec.NAN_BITS)
_INFINITY_BITS = tl.constexpr(0x7F800000)
_ROUNDER = tl.constexpr(1.5 * 2**23)
"""A small number plus this has the integer, rounded half to even, in its lowest bits."""
_ELEMENTS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
_RESTORED_BLOCK = 16384
_LARGE_HEAD_ELEMENTS = 4096
_PIPELINED_BYTES = 64 << 10
"""The largest head of a page that is encoded while the next heads arrive in shared memory."""


def choose_num_ctas(direction: CopyDirection, page_elements: int) -> int:
    """Just enough to saturate PCIe on an H200 (2026-11-21).

    `page_elements`: as for `encoded_head_bytes`. A multiprocessor encodes heads one after another:
    16 tokens of 128 dims in a microsecond, four times as many in two.
    """
    match direction:
        case CopyDirection.TO_POOL:
            return 8
        case CopyDirection.TO_ARENA:
            return 8 if page_elements >= _LARGE_HEAD_ELEMENTS else 14


def copy_quantised_pages(
    table: Tensor,
    launch: Launch,
    arena: Tensor,
    direction: CopyDirection,
    pool: Tensor,
    codec: Codec,
) -> None:
    """Enqueue a launch of `page_copy.pack_copies`, whose segments all have this codec.

    `table` and `arena`: as for `page_copy.copy_pages`. `pool`: that of a segment; all pools of the
    launch have its dtype, page size and head dim. Raises ValueError if a tensor has another dtype
    or is not contiguous and aligned.
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
    if codec is Codec.NONE or pool.dtype not in _ELEMENTS or pool.dim() != 6:
        raise ValueError(f"Pages of {pool.dtype} {tuple(pool.shape)} cannot be held as {codec}.")
    if launch.num_segments < 1:
        raise ValueError(f"A launch of {launch.num_segments} segments; expected at least one.")

    page_elements = pool.shape[4] * pool.shape[5]
    all_columns = triton.next_power_of_2(page_elements)
    options: dict[str, Any] = {
        "SEGMENT_FIELDS": SEGMENT_FIELDS,
        "ELEMENT": _ELEMENTS[pool.dtype],
        "ELEMENT_BYTES": pool.element_size(),
        "PAGE_ELEMENTS": page_elements,
        "HEAD_BYTES": encoded_head_bytes(page_elements),
        "IS_INT8": codec is Codec.INT8,
    }

    copy = (table, arena, launch.first_segment, launch.num_segments)
    grid = (choose_num_ctas(direction, page_elements),)
    if direction is CopyDirection.TO_POOL:
        block = min(_RESTORED_BLOCK, 2 * all_columns)
        _restore_heads[grid](*copy, **options, BLOCK=block, STAGES=6, num_warps=4)
    else:
        head_bytes = 2 * all_columns * pool.element_size()
        stages = 3 if head_bytes <= _PIPELINED_BYTES else 1
        options |= {"LARGEST": codec.largest, "COLUMNS": all_columns, "STAGES": stages}
        num_warps = min(max(head_bytes // 8192, 4), 16)
        _encode_heads[grid](*copy, **options, num_warps=num_warps, enable_fp_fusion=False)


def compile_quantised_copies(pool: Tensor, codec: Codec) -> None:
    """Compile the copies of one pool, as `page_copy.compile_copies` does."""
    table = torch.zeros(SEGMENT_FIELDS, dtype=torch.int64, device=pool.device)
    arena = torch.zeros(ALIGNMENT_BYTES, dtype=torch.uint8, pin_memory=pool.is_cuda)
    launch = Launch(first_segment=0, num_segments=1, smallest_piece_bytes=0)
    for direction in CopyDirection:
        copy_quantised_pages(table, launch, arena, direction, pool, codec)


@triton.jit(do_not_specialize=["first_segment", "num_segments"])
def _restore_heads(
    table_ptr,
    arena_ptr,
    first_segment,
    num_segments,
    SEGMENT_FIELDS: tl.constexpr,
    ELEMENT: tl.constexpr,
    ELEMENT_BYTES: tl.constexpr,
    PAGE_ELEMENTS: tl.constexpr,
    HEAD_BYTES: tl.constexpr,
    IS_INT8: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """A fixed grid walks (page, piece, head, block) of each segment.

    Reads of the arena are rotated within the block so that every warp starts on one of its lines of
    128 bytes: what begins between two lines costs a request more. So do scales: they are read once
    per block, by one thread.
    """
    BLOCKS: tl.constexpr = (2 * PAGE_ELEMENTS + BLOCK - 1) // BLOCK
    kv = tl.arange(0, 2)
    for segment in range(first_segment, first_segment + num_segments):
        row_ptr = table_ptr + segment * SEGMENT_FIELDS
        pool_ptr = tl.load(row_ptr).to(tl.pointer_type(ELEMENT), bitcast=True)
        arena_start = tl.load(row_ptr + 1)
        pool_stride = tl.load(row_ptr + 2)
        arena_stride = tl.load(row_ptr + 3)
        num_pieces = tl.load(row_ptr + 4).to(tl.int32)
        num_heads = (tl.load(row_ptr + 5) * 8 // (2 * PAGE_ELEMENTS * ELEMENT_BYTES)).to(tl.int32)
        pages_ptr = table_ptr + tl.load(row_ptr + 6)
        num_pages = tl.load(row_ptr + 7).to(tl.int32)
        total = num_pages * num_pieces * num_heads * BLOCKS
        for work in tl.range(tl.program_id(0), total, tl.num_programs(0), num_stages=STAGES):
            head = work // BLOCKS % num_heads
            piece = work // BLOCKS // num_heads % num_pieces
            page = work // BLOCKS // num_heads // num_pieces
            pool_word = tl.load(pages_ptr + 2 * page) + piece * pool_stride
            arena_word = tl.load(pages_ptr + 2 * page + 1) + arena_start + piece * arena_stride
            pool_head = pool_ptr + pool_word * (8 // ELEMENT_BYTES) + head * (2 * PAGE_ELEMENTS)
            arena_head = arena_ptr + arena_word * 8 + head * HEAD_BYTES
            pool_head, arena_head = tl.multiple_of(pool_head, 16), tl.multiple_of(arena_head, 16)

            past_line = ((arena_head + work % BLOCKS * BLOCK).to(tl.int64) // 16 % 8).to(tl.int32)
            offset = work % BLOCKS * BLOCK + (tl.arange(0, BLOCK) + (8 - past_line) * 16) % BLOCK
            inside = offset < 2 * PAGE_ELEMENTS
            payload = tl.load(arena_head + offset, mask=inside, cache_modifier=".cg")
            scales_ptr = (arena_head + 2 * PAGE_ELEMENTS).to(
                tl.pointer_type(tl.float32), bitcast=True
            )
            scales = tl.load(scales_ptr + kv)

            if IS_INT8:
                number = payload.to(tl.int8, bitcast=True).to(tl.float32)
            else:
                number = payload.to(tl.float8e4nv, bitcast=True).to(tl.float32)
            k_scale, v_scale = (
                tl.sum(tl.where(kv == 0, scales, 0.0)),
                tl.sum(tl.where(kv == 1, scales, 0.0)),
            )
            value = (number * tl.where(offset < PAGE_ELEMENTS, k_scale, v_scale)).to(ELEMENT)
            tl.store(pool_head + offset, value, mask=inside, cache_modifier=".cs")


@triton.jit(do_not_specialize=["first_segment", "num_segments"])
def _encode_heads(
    table_ptr,
    arena_ptr,
    first_segment,
    num_segments,
    SEGMENT_FIELDS: tl.constexpr,
    ELEMENT: tl.constexpr,
    ELEMENT_BYTES: tl.constexpr,
    PAGE_ELEMENTS: tl.constexpr,
    HEAD_BYTES: tl.constexpr,
    IS_INT8: tl.constexpr,
    LARGEST: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """A fixed grid walks (page, piece, head) of each segment.

    Products must not be fused with sums.
    """
    kv = tl.arange(0, 2)
    column = tl.arange(0, COLUMNS)
    inside = (column < PAGE_ELEMENTS)[None, :]
    offset = kv[:, None] * PAGE_ELEMENTS + column[None, :]
    for segment in range(first_segment, first_segment + num_segments):
        row_ptr = table_ptr + segment * SEGMENT_FIELDS
        pool_ptr = tl.load(row_ptr).to(tl.pointer_type(ELEMENT), bitcast=True)
        arena_start = tl.load(row_ptr + 1)
        pool_stride = tl.load(row_ptr + 2)
        arena_stride = tl.load(row_ptr + 3)
        num_pieces = tl.load(row_ptr + 4).to(tl.int32)
        num_heads = (tl.load(row_ptr + 5) * 8 // (2 * PAGE_ELEMENTS * ELEMENT_BYTES)).to(tl.int32)
        pages_ptr = table_ptr + tl.load(row_ptr + 6)
        num_pages = tl.load(row_ptr + 7).to(tl.int32)
        total = num_pages * num_pieces * num_heads
        for work in tl.range(tl.program_id(0), total, tl.num_programs(0), num_stages=STAGES):
            head = work % num_heads
            piece = work // num_heads % num_pieces
            page = work // num_heads // num_pieces
            pool_word = tl.load(pages_ptr + 2 * page) + piece * pool_stride
            arena_word = tl.load(pages_ptr + 2 * page + 1) + arena_start + piece * arena_stride
            pool_head = pool_ptr + pool_word * (8 // ELEMENT_BYTES) + head * (2 * PAGE_ELEMENTS)
            arena_head = arena_ptr + arena_word * 8 + head * HEAD_BYTES
            pool_head, arena_head = tl.multiple_of(pool_head, 16), tl.multiple_of(arena_head, 16)
            value = tl.load(pool_head + offset, mask=inside, other=0.0, cache_modifier=".cg").to(
                tl.float32
            )

            largest_bits = tl.max(value.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1)
            is_number = largest_bits < _INFINITY_BITS
            largest = largest_bits.to(tl.float32, bitcast=True)
            scale_bits = tl.div_rn(largest, tl.full((2,), LARGEST, tl.float32)).to(
                tl.int32, bitcast=True
            )
            scale_bits = (scale_bits + _LOW_BITS) & (-1 - _LOW_BITS)
            scale_bits = tl.where(largest < _SMALLEST, 0, scale_bits)
            factor = tl.div_rn(
                tl.full((2,), 1.0, tl.float32), scale_bits.to(tl.float32, bitcast=True)
            )
            factor = tl.where((scale_bits == 0) | (largest_bits >= _INFINITY_BITS), 0.0, factor)

            scaled = tl.where(is_number[:, None], value, 0.0) * factor[:, None]
            if IS_INT8:
                payload = (scaled + _ROUNDER).to(tl.int32, bitcast=True).to(tl.uint8)
            else:
                payload = scaled.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
            tl.store(arena_head + offset, payload, mask=inside, cache_modifier=".cs")
            scale_bits = tl.where(is_number, scale_bits, _NAN_BITS)
            scales = tl.reshape(tl.trans(tl.join(scale_bits, tl.zeros_like(scale_bits))), (4,))
            scales_ptr = (arena_head + 2 * PAGE_ELEMENTS).to(
                tl.pointer_type(tl.int32), bitcast=True
            )
            tl.store(scales_ptr + tl.arange(0, 4), scales, cache_modifier=".cs")
