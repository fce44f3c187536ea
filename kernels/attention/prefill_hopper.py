# mypy: disable-error-code="no-untyped-def"
"""Causal attention of many query tokens per row over pages in bf16 or FP8, for Hopper.

The same computation as `paged_prefill`, in Gluon, which lets us say what Triton decides badly: one
warp asks for keys and values, and each of two warp groups has half of a tile's queries, for which
it multiplies the next keys while it weighs the last ones (FlashAttention-3). What comes in FP8 a
third group unpacks for both.

Legend: P pages, L layers of the KV group, H KV heads, S tokens per page, D head dim.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from raydix.kernels.attention.hopper_blocks import (
    BARRIER,
    COPY_DIMS,
    COPY_ROWS,
    DIM,
    SHARED,
    ask_for_block,
    blocks_of,
    head_scales,
    silence,
    unpack,
    weigh,
)
from raydix.kernels.device.gluon_barrier import thread_barrier

TILE_TOKENS = 128
BLOCK_KEYS = 128
_STAGES = gl.constexpr(2)
"""The number of blocks of keys, and of values, that are in flight or in use."""
_FIRST = gl.constexpr(0)
_ROWS = gl.constexpr(TILE_TOKENS // 2)
"""The number of queries of a warp group, which is half of a tile."""
_KEYS = gl.constexpr(BLOCK_KEYS)
_SCORES = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16]))
"""The layout of the scores, and of the sums of values."""
_SCORE_ROWS = gl.constexpr(gl.SliceLayout(1, _SCORES.value))
_SCORE_KEYS = gl.constexpr(gl.SliceLayout(0, _SCORES.value))
_TILES = gl.constexpr(128)
_LINE = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))


@gluon.jit
def _bring(boxes, pages, blocks, stages, PAGE: gl.constexpr):
    """Bring the keys and values of all blocks of a share, one after the other, as there is room."""
    tables_ptr, tiles_ptr, table_stride, page_rows, key_row = pages
    begin, stop_share = blocks
    keys, values, ready, free = stages
    tile_ptr = tiles_ptr
    tile_begin = 0
    asked = 0
    while begin < stop_share:
        context = gl.load(tile_ptr + 3)
        tile_stop = tile_begin + blocks_of(context, gl.load(tile_ptr + 2), _KEYS)
        table_ptr = tables_ptr + gl.load(tile_ptr).to(gl.int64) * table_stride
        last_page = (context - 1) // PAGE
        part_stop = gl.minimum(tile_stop, stop_share)
        for block in range(begin, part_stop):
            key = (block - tile_begin) * _KEYS
            stage = asked % _STAGES
            phase = asked // _STAGES & 1
            places = (keys, values)
            for part in gl.static_range(2):
                mbarrier.wait(free.index(part * _STAGES + stage), phase ^ 1)
                ask_for_block(
                    boxes,
                    table_ptr,
                    key,
                    last_page,
                    page_rows,
                    key_row + part * PAGE,
                    places[part].index(stage),
                    ready.index(part * _STAGES + stage),
                    PAGE,
                )
            asked += 1
        begin = gl.maximum(begin, part_stop)
        tile_begin = tile_stop
        tile_ptr += 4


@gluon.jit
def _unpack_all(blocks, stored, stages):
    """Unpack all blocks of a share, one after the other, as they come and there is room."""
    begin, stop_share = blocks
    keys, values, brought, taken = stored
    unpacked_keys, unpacked_values, ready, free = stages
    places = ((keys, unpacked_keys), (values, unpacked_values))
    for block in range(begin, stop_share):
        stage = (block - begin) % _STAGES
        phase = (block - begin) // _STAGES & 1
        for part in gl.static_range(2):
            each = part * _STAGES + stage
            mbarrier.wait(brought.index(each), phase)
            mbarrier.wait(free.index(each), phase ^ 1)
            unpack(places[part][0].index(stage), places[part][1].index(stage))
            mbarrier.arrive(taken.index(each), count=1)
            mbarrier.arrive(ready.index(each), count=1)


@gluon.jit
def _free(barrier):
    """Every warp of the group has read what is there."""
    thread_barrier()
    mbarrier.arrive(barrier, count=1)


@gluon.jit
def _attend(
    tensors,
    strides,
    scales,
    blocks,
    q_smem,
    stages,
    FIRST_ROW: gl.constexpr,
):
    """All blocks of a share, for queries from FIRST_ROW on of each tile."""
    q_ptr, tiles_ptr, out_ptr, parts_ptr, lse_ptr = tensors
    q_token_stride, q_head_stride, out_token_stride, out_head_stride = strides
    begin, stop_share = blocks
    keys, values, ready, free = stages
    scale_log2, v_scale = scales
    OPERAND: gl.constexpr = q_smem.dtype
    # Scaled before they are rounded to float16, queries are far from the largest one.
    score_scale = 1.0 if gl.float16 == OPERAND else scale_log2
    query_head = gl.program_id(0)
    share = gl.program_id(1)
    tile_ptr = tiles_ptr
    tile_begin = 0
    asked = 0
    nothing = gl.zeros([_ROWS, DIM], gl.float32, layout=_SCORES)
    while begin < stop_share:
        count = gl.load(tile_ptr + 2)
        context = gl.load(tile_ptr + 3)
        tile_stop = tile_begin + blocks_of(context, count, _KEYS)
        if begin < tile_stop:
            part_stop = gl.minimum(tile_stop, stop_share)
            num_blocks = part_stop - begin
            first_key = (begin - tile_begin) * _KEYS
            first_position = context - count + FIRST_ROW
            first_token = gl.load(tile_ptr + 1).to(gl.int64)

            q_row = FIRST_ROW + gl.arange(0, _ROWS, layout=COPY_ROWS)
            q_dim = gl.arange(0, DIM, layout=COPY_DIMS)
            q_row_ptr = q_ptr + (first_token + q_row) * q_token_stride + query_head * q_head_stride
            q = gl.load(
                gl.expand_dims(q_row_ptr, 1) + gl.expand_dims(q_dim, 0),
                mask=gl.expand_dims(q_row < count, 1),
                other=0.0,
            )
            if gl.float16 == OPERAND:
                q = (q.to(gl.float32) * scale_log2).to(OPERAND)
            q_smem.store(q)
            fence_async_shared()
            thread_barrier()

            stage = asked % _STAGES
            mbarrier.wait(ready.index(stage), asked // _STAGES & 1)
            next_scores = warpgroup_mma(
                q_smem, keys.index(stage).permute((1, 0)), nothing, use_acc=False, is_async=True
            )
            scores = warpgroup_mma_wait(num_outstanding=0, deps=[next_scores])
            _free(free.index(stage))
            maximum = gl.full([_ROWS], -1e30, gl.float32, layout=_SCORE_ROWS)
            total = gl.full([_ROWS], 0.0, gl.float32, layout=_SCORE_ROWS)
            weights, decay, maximum, total = weigh(
                scores,
                first_key,
                first_position,
                maximum,
                total,
                score_scale,
                1,
                OPERAND,
            )
            acc = nothing
            for block in range(1, num_blocks):
                used = asked + block
                stage = used % _STAGES
                mbarrier.wait(ready.index(stage), used // _STAGES & 1)
                next_scores = warpgroup_mma(
                    q_smem, keys.index(stage).permute((1, 0)), nothing, use_acc=False, is_async=True
                )
                before = (used - 1) % _STAGES
                mbarrier.wait(ready.index(_STAGES + before), (used - 1) // _STAGES & 1)
                running = warpgroup_mma(weights, values.index(before), acc, is_async=True)
                scores = warpgroup_mma_wait(num_outstanding=1, deps=[next_scores])
                _free(free.index(stage))
                next_weights, decay, maximum, total = weigh(
                    scores,
                    first_key + block * _KEYS,
                    first_position,
                    maximum,
                    total,
                    score_scale,
                    1,
                    OPERAND,
                )
                acc, weights = warpgroup_mma_wait(num_outstanding=0, deps=[running, weights])
                _free(free.index(_STAGES + before))
                acc = acc * gl.expand_dims(decay, 1)
                weights = next_weights

            used = asked + num_blocks - 1
            stage = used % _STAGES
            mbarrier.wait(ready.index(_STAGES + stage), used // _STAGES & 1)
            last_key = first_key + (num_blocks - 1) * _KEYS
            if last_key + _KEYS > context:
                silence(values.index(stage), last_key, context)
            acc = warpgroup_mma(weights, values.index(stage), acc)
            _free(free.index(_STAGES + stage))
            asked += num_blocks

            result = acc * v_scale / gl.expand_dims(gl.where(total == 0.0, 1.0, total), 1)
            row = FIRST_ROW + gl.arange(0, _ROWS, layout=_SCORE_ROWS)
            dim = gl.arange(0, DIM, layout=_SCORE_KEYS)
            is_query = row < count
            if num_blocks == tile_stop - tile_begin:
                out_row_ptr = out_ptr + (first_token + row) * out_token_stride
                out_row_ptr += query_head * out_head_stride
                gl.store(
                    gl.expand_dims(out_row_ptr, 1) + gl.expand_dims(dim, 0),
                    result.to(gl.bfloat16),
                    mask=gl.expand_dims(is_query, 1),
                )
            else:
                part = 2 * share + (begin == tile_begin).to(gl.int32)
                entry = (part * gl.num_programs(0) + query_head).to(gl.int64)
                part_row = entry * (2 * _ROWS) + row
                gl.store(
                    parts_ptr + gl.expand_dims(part_row * DIM, 1) + gl.expand_dims(dim, 0),
                    result,
                    mask=gl.expand_dims(is_query, 1),
                )
                gl.store(lse_ptr + part_row, maximum + gl.log2(total), mask=is_query)
            begin = part_stop
        tile_begin = tile_stop
        tile_ptr += 4


@gluon.jit
def _make_stages(dtype: gl.constexpr, layout: gl.constexpr, NUM_READERS: gl.constexpr):
    """Room for blocks of keys and of values, and barriers that say that it is filled, or free."""
    keys = gl.allocate_shared_memory(dtype, [_STAGES, _KEYS, DIM], layout)
    values = gl.allocate_shared_memory(dtype, [_STAGES, _KEYS, DIM], layout)
    # Of keys, then of values.
    ready = gl.allocate_shared_memory(gl.int64, [2 * _STAGES, 1], BARRIER)
    free = gl.allocate_shared_memory(gl.int64, [2 * _STAGES, 1], BARRIER)
    for each in gl.static_range(2 * _STAGES):
        mbarrier.init(ready.index(each), count=1)
        mbarrier.init(free.index(each), count=NUM_READERS)
    fence_async_shared()
    thread_barrier()
    return keys, values, ready, free


@gluon.jit
def _forget_stages(stages):
    _, _, ready, free = stages
    for each in gl.static_range(2 * _STAGES):
        mbarrier.invalidate(ready.index(each))
        mbarrier.invalidate(free.index(each))


@gluon.jit(do_not_specialize=["layer", "num_layers", "num_tiles", "table_stride"])
def attend_share(
    q_ptr,
    boxes,
    tables_ptr,
    tiles_ptr,
    out_ptr,
    parts_ptr,
    lse_ptr,
    scales_ptr,
    q_token_stride,
    q_head_stride,
    out_token_stride,
    out_head_stride,
    layer,
    num_layers,
    num_tiles,
    table_stride,
    scale_log2,
    KV_HEADS: gl.constexpr,
    GROUP: gl.constexpr,
    PAGE: gl.constexpr,
    MIN_BLOCKS: gl.constexpr,
):
    """One share of a query head; neighbouring programs share keys through L2."""
    page_rows = num_layers * (KV_HEADS * 2 * PAGE)
    key_row = (layer * KV_HEADS + gl.program_id(0) // GROUP) * (2 * PAGE)
    all_blocks = 0
    for some in range(0, num_tiles, _TILES):
        index = some + gl.arange(0, _TILES, layout=_LINE)
        is_tile = index < num_tiles
        counts = gl.load(tiles_ptr + 4 * index + 2, mask=is_tile, other=0)
        contexts = gl.load(tiles_ptr + 4 * index + 3, mask=is_tile, other=0)
        all_blocks += gl.sum(blocks_of(contexts, counts, _KEYS), 0)
    share_blocks = gl.maximum(gl.cdiv(all_blocks, gl.num_programs(1)), MIN_BLOCKS)
    begin = gl.program_id(1) * share_blocks
    stop_share = gl.minimum(begin + share_blocks, all_blocks)

    IS_FP8: gl.constexpr = boxes.dtype == gl.float8e4nv
    OPERAND: gl.constexpr = gl.float16 if IS_FP8 else gl.bfloat16
    q_smem = gl.allocate_shared_memory(OPERAND, [2, _ROWS, DIM], SHARED)
    stages = _make_stages(OPERAND, SHARED, 2)
    scales = head_scales(scales_ptr, gl.program_id(0) // GROUP, KV_HEADS, scale_log2)
    tensors = (q_ptr, tiles_ptr, out_ptr, parts_ptr, lse_ptr)
    strides = (q_token_stride, q_head_stride, out_token_stride, out_head_stride)
    blocks = (begin, stop_share)
    first = (tensors, strides, scales, blocks, q_smem.index(0), stages, _FIRST)
    second = (tensors, strides, scales, blocks, q_smem.index(1), stages, _ROWS)
    pages = (tables_ptr, tiles_ptr, table_stride, page_rows, key_row)
    # Warps of the second group and of the others, and registers of their threads.
    if IS_FP8:
        DTYPE: gl.constexpr = boxes.dtype
        LAYOUT: gl.constexpr = boxes.layout
        stored = _make_stages(DTYPE, LAYOUT, 1)
        gl.warp_specialize(
            [
                (_attend, first),
                (_attend, second),
                (_unpack_all, (blocks, stored, stages)),
                (_bring, (boxes, pages, blocks, stored, PAGE)),
            ],
            [4, 4, 1],
            [216, 56, 24],
        )
        _forget_stages(stored)
    else:
        gl.warp_specialize(
            [(_attend, first), (_attend, second), (_bring, (boxes, pages, blocks, stages, PAGE))],
            [4, 1],
            [240, 24],
        )
    _forget_stages(stages)
