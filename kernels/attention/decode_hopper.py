# mypy: disable-error-code="no-untyped-def"
"""Attention of a few query tokens per row over pages in bf16 or FP8, for Hopper's matrix units.

The same computation as `paged_decode`, in Gluon, as Triton orders loads by itself: keys and values
of older steps do not depend on the kernel ahead on the stream, and are on their way before it has
ended. No row reads what another row of its step writes: pages are shared when their step is over.
But the tiles of one row do: its last ones attend to the tokens of its first ones.

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
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from raydix.kernels.attention.hopper_blocks import (
    BARRIER,
    DIM,
    SHARED,
    ask_for_rows,
    blocks_of,
    find_rows,
    head_scales,
    silence,
    unpack,
    weigh,
)
from raydix.kernels.device.gluon_barrier import thread_barrier

MAX_TILE_ROWS = 64
"""The most query rows of a tile: its tokens times the query heads of a KV head."""
BLOCK_KEYS = 64
NUM_STAGES = 3
"""Blocks of keys that a program has in flight; two programs share a multiprocessor's memory."""
_ROWS = gl.constexpr(MAX_TILE_ROWS)
_KEYS = gl.constexpr(BLOCK_KEYS)
_STAGES = gl.constexpr(NUM_STAGES)
_SCORES = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
"""The layout of the scores, and of the sums of values."""
_SCORE_ROWS = gl.constexpr(gl.SliceLayout(1, _SCORES.value))
_SCORE_DIMS = gl.constexpr(gl.SliceLayout(0, _SCORES.value))
_QUERIES = gl.constexpr(gl.DotOperandLayout(0, _SCORES.value, 2))
_QUERY_ROWS = gl.constexpr(gl.SliceLayout(1, _QUERIES.value))
_QUERY_DIMS = gl.constexpr(gl.SliceLayout(0, _QUERIES.value))
_TILES = gl.constexpr(128)
_LINE = gl.constexpr(gl.BlockedLayout([4], [32], [4], [0]))
"""The layout of a line of tiles: every warp has all of them, and adds them up without waiting."""


@gluon.jit
def _add(a, b):
    return a + b


@gluon.jit
def _tile(columns, tile):
    """Context and number of tokens of one tile, or of several."""
    _, contexts_ptr, counts_ptr = columns
    context = gl.load(contexts_ptr + tile).to(gl.int32)
    count = 1
    if counts_ptr is not None:
        count = gl.load(counts_ptr + tile).to(gl.int32)
    return context, count


@gluon.jit
def _first_token(tokens_ptr, tile, num_tiles):
    """The index in the step of a tile's first token; past all tiles, that of the last tile."""
    return gl.load(tokens_ptr + gl.minimum(tile, num_tiles - 1)).to(gl.int64)


@gluon.jit
def _some_blocks(columns, some, num_tiles):
    """Blocks of some tiles."""
    _, contexts_ptr, counts_ptr = columns
    tile = some + gl.arange(0, _TILES, layout=_LINE)
    is_tile = tile < num_tiles
    context = gl.load(contexts_ptr + tile, mask=is_tile, other=0).to(gl.int32)
    count = gl.full([_TILES], 1, gl.int32, layout=_LINE)
    if counts_ptr is not None:
        count = gl.load(counts_ptr + tile, mask=is_tile, other=0).to(gl.int32)
    return blocks_of(context, count, _KEYS)


@gluon.jit
def _own_share(columns, num_tiles, MIN_BLOCKS: gl.constexpr):
    """The first block of this program's share and the one behind its last; the tile of the first,
    and that tile's first block."""
    all_blocks = 0
    for some in range(0, num_tiles, _TILES):
        all_blocks += gl.sum(_some_blocks(columns, some, num_tiles), 0)
    share_blocks = gl.maximum(gl.cdiv(all_blocks, gl.num_programs(1)), MIN_BLOCKS)
    begin = gl.program_id(1) * share_blocks
    stop = gl.minimum(begin + share_blocks, all_blocks)

    tile = 0
    tile_begin = 0
    seen = 0
    for some in range(0, num_tiles, _TILES):
        blocks = _some_blocks(columns, some, num_tiles)
        # It is the first that ends behind the block.
        is_before = seen + gl.associative_scan(blocks, 0, _add) <= begin
        tile += gl.sum(is_before.to(gl.int32), 0)
        tile_begin += gl.sum(gl.where(is_before, blocks, 0), 0)
        seen += gl.sum(blocks, 0)
    return begin, stop, tile, tile_begin


@gluon.jit
def _find(boxes, pages, columns, place, block, PAGE: gl.constexpr):
    """The place of a block at or behind `place`, its first key, the context, and its rows."""
    tables_ptr, table_stride, page_rows, _ = pages
    rows_ptr, _, _ = columns
    tile, tile_begin = place
    context, count = _tile(columns, tile)
    tile_stop = tile_begin + blocks_of(context, count, _KEYS)
    while block >= tile_stop:
        tile += 1
        tile_begin = tile_stop
        context, count = _tile(columns, tile)
        tile_stop += blocks_of(context, count, _KEYS)

    key = (block - tile_begin) * _KEYS
    table_ptr = tables_ptr + gl.load(rows_ptr + tile).to(gl.int64) * table_stride
    rows = find_rows(boxes, table_ptr, key, (context - 1) // PAGE, page_rows, _KEYS, PAGE)
    return (tile, tile_begin), key, context, rows


@gluon.jit
def _ask(boxes, rows, key_row, stages, asked, is_wanted, PAGE: gl.constexpr):
    """Ask for keys and values of the rows that `_find` found, if they are wanted."""
    keys, values, ready = stages
    stage = asked % _STAGES
    places = (keys, values)
    for part in gl.static_range(2):
        ask_for_rows(
            boxes,
            rows,
            key_row + part * PAGE,
            places[part].index(stage),
            ready.index(part * _STAGES + stage),
            is_wanted,
        )


@gluon.jit
def _ask_first(
    boxes,
    pages,
    columns,
    place,
    stages,
    blocks,
    num_tokens,
    PAGE: gl.constexpr,
    WANTED: gl.constexpr,
):
    """Ask for the first blocks of a share, as many as there are stages.

    Returns the place of the last. num_tokens: of the step. WANTED: "old", only if no token of this
    step can be among them; "new", only if one can; or "all".
    """
    begin, stop = blocks
    tile, tile_begin = place
    for asked in gl.static_range(_STAGES):
        if begin + asked < stop:
            place, key, context, rows = _find(
                boxes, pages, columns, (tile, tile_begin), begin + asked, PAGE
            )
            tile, tile_begin = place
            is_wanted = True
            if WANTED != "all":
                # Of the tile's row the step may have all its tokens, in tiles before this one, too.
                is_wanted = (key + _KEYS <= context - num_tokens) == (WANTED == "old")
            _ask(boxes, rows, pages[3], stages, asked, is_wanted, PAGE)
    return tile, tile_begin


@gluon.jit
def _score(q, stages, unpacked, stage, phase):
    """Products of queries with a block of keys, and its values where matrix units read them.

    What came in FP8 is unpacked before, and values while keys are multiplied.
    """
    keys, values, ready = stages
    nothing = gl.zeros([_ROWS, _KEYS], gl.float32, layout=_SCORES)
    mbarrier.wait(ready.index(stage), phase)
    value_block = values.index(stage)
    if unpacked is None:
        keys_T = keys.index(stage).permute((1, 0))
        scores = warpgroup_mma(q, keys_T, nothing, use_acc=False)
    else:
        unpack(keys.index(stage), unpacked.index(0))
        keys_T = unpacked.index(0).permute((1, 0))
        running = warpgroup_mma(q, keys_T, nothing, use_acc=False, is_async=True)
        mbarrier.wait(ready.index(_STAGES + stage), phase)
        value_block = unpacked.index(1)
        unpack(values.index(stage), value_block)
        scores, q = warpgroup_mma_wait(num_outstanding=0, deps=[running, q])
    return scores, value_block


@gluon.jit(do_not_specialize=["layer", "num_layers", "num_tokens", "num_tiles", "table_stride"])
def attend_decode_share(
    q_ptr,
    boxes,
    tables_ptr,
    rows_ptr,
    tokens_ptr,
    contexts_ptr,
    counts_ptr,
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
    num_tokens,
    num_tiles,
    table_stride,
    scale_log2,
    GROUP: gl.constexpr,
    TILE_ROWS: gl.constexpr,
    PAGE: gl.constexpr,
    MIN_BLOCKS: gl.constexpr,
    EARLY: gl.constexpr,
):
    """One share of a KV head: query rows of a tile are (token, query head of the group)."""
    IS_FP8: gl.constexpr = boxes.dtype == gl.float8e4nv
    OPERAND: gl.constexpr = gl.float16 if IS_FP8 else gl.bfloat16
    keys = gl.allocate_shared_memory(boxes.dtype, [_STAGES, _KEYS, DIM], boxes.layout)
    values = gl.allocate_shared_memory(boxes.dtype, [_STAGES, _KEYS, DIM], boxes.layout)
    unpacked = None
    if IS_FP8:
        unpacked = gl.allocate_shared_memory(OPERAND, [2, _KEYS, DIM], SHARED)
    # Of keys, then of values.
    ready = gl.allocate_shared_memory(gl.int64, [2 * _STAGES, 1], BARRIER)
    for each in gl.static_range(2 * _STAGES):
        mbarrier.init(ready.index(each), count=1)
    fence_async_shared()
    thread_barrier()

    head = gl.program_id(0)
    share = gl.program_id(1)
    scale_log2, v_scale = head_scales(scales_ptr, head, gl.num_programs(0), scale_log2)
    # Scaled before they are rounded to float16, queries are far from the largest one.
    score_scale = 1.0 if IS_FP8 else scale_log2
    columns = (rows_ptr, contexts_ptr, counts_ptr)
    begin, stop_share, tile, tile_begin = _own_share(columns, num_tiles, MIN_BLOCKS)
    blocks = (begin, stop_share)
    page_rows = num_layers * (gl.num_programs(0) * 2 * PAGE)
    key_row = (layer * gl.num_programs(0) + head) * (2 * PAGE)
    pages = (tables_ptr, table_stride, page_rows, key_row)
    stages = (keys, values, ready)
    place = (tile, tile_begin)
    first_token = _first_token(tokens_ptr, tile, num_tiles)
    if EARLY:
        _ask_first(boxes, pages, columns, place, stages, blocks, num_tokens, PAGE, "old")
        gdc_wait()
        gdc_launch_dependents()
        place = _ask_first(boxes, pages, columns, place, stages, blocks, num_tokens, PAGE, "new")
    else:
        place = _ask_first(boxes, pages, columns, place, stages, blocks, num_tokens, PAGE, "all")

    query_row = gl.arange(0, _ROWS, layout=_QUERY_ROWS)
    query_dim = gl.arange(0, DIM, layout=_QUERY_DIMS)
    query_ptr = q_ptr + query_row // GROUP * q_token_stride
    query_ptr += (head * GROUP + query_row % GROUP) * q_head_stride
    row = gl.arange(0, _ROWS, layout=_SCORE_ROWS)
    dim = gl.arange(0, DIM, layout=_SCORE_DIMS)
    while begin < stop_share:
        context, count = _tile(columns, tile)
        tile_stop = tile_begin + blocks_of(context, count, _KEYS)
        if begin < tile_stop:
            part_stop = gl.minimum(tile_stop, stop_share)
            is_query = query_row < count * GROUP
            q = gl.load(
                gl.expand_dims(query_ptr + first_token * q_token_stride, 1)
                + gl.expand_dims(query_dim, 0),
                mask=gl.expand_dims(is_query, 1),
                other=0.0,
            )
            if IS_FP8:
                q = (q.to(gl.float32) * scale_log2).to(OPERAND)
            maximum = gl.full([_ROWS], -1e30, gl.float32, layout=_SCORE_ROWS)
            total = gl.full([_ROWS], 0.0, gl.float32, layout=_SCORE_ROWS)
            acc = gl.zeros([_ROWS, DIM], gl.float32, layout=_SCORES)
            for block in range(begin, part_stop):
                used = block - blocks[0]
                stage = used % _STAGES
                phase = used // _STAGES & 1
                key = (block - tile_begin) * _KEYS
                asked = blocks[0] + used + _STAGES
                is_wanted = asked < stop_share
                asked = gl.minimum(asked, stop_share - 1)
                if IS_FP8:
                    # A block takes half as long as in bf16, so that tables would be waited for.
                    place, _, _, rows = _find(boxes, pages, columns, place, asked, PAGE)
                scores, value_block = _score(q, stages, unpacked, stage, phase)
                weights, decay, maximum, total = weigh(
                    scores, key, context - count, maximum, total, score_scale, GROUP, OPERAND
                )
                acc = acc * gl.expand_dims(decay, 1)
                mbarrier.wait(ready.index(_STAGES + stage), phase)
                if key + _KEYS > context:
                    silence(value_block, key, context)
                # Stages of FP8 have been read by now, so the next are asked for beside the product.
                acc = warpgroup_mma(weights, value_block, acc, is_async=IS_FP8)
                # Before a stage, or the room for unpacked keys, is filled again every warp has to
                # have read it.
                thread_barrier()
                if not IS_FP8:
                    place, _, _, rows = _find(boxes, pages, columns, place, asked, PAGE)
                _ask(boxes, rows, key_row, stages, used + _STAGES, is_wanted, PAGE)
                if IS_FP8:
                    acc, weights = warpgroup_mma_wait(num_outstanding=0, deps=[acc, weights])

            result = acc * v_scale / gl.expand_dims(gl.where(total == 0.0, 1.0, total), 1)
            is_row = row < count * GROUP
            if part_stop - begin == tile_stop - tile_begin:
                out_row_ptr = out_ptr + (first_token + row // GROUP) * out_token_stride
                out_row_ptr += (head * GROUP + row % GROUP) * out_head_stride
                gl.store(
                    gl.expand_dims(out_row_ptr, 1) + gl.expand_dims(dim, 0),
                    result.to(gl.bfloat16),
                    mask=gl.expand_dims(is_row, 1),
                )
            else:
                part = 2 * share + (begin == tile_begin).to(gl.int32)
                part_row = (part * gl.num_programs(0) + head) * TILE_ROWS + row
                gl.store(
                    parts_ptr + gl.expand_dims(part_row * DIM, 1) + gl.expand_dims(dim, 0),
                    result,
                    mask=gl.expand_dims(is_row, 1),
                )
                gl.store(lse_ptr + part_row, maximum + gl.log2(total), mask=is_row)
            begin = part_stop
        tile_begin = tile_stop
        tile += 1
        first_token = _first_token(tokens_ptr, tile, num_tiles)

    for each in gl.static_range(2 * _STAGES):
        mbarrier.invalidate(ready.index(each))
