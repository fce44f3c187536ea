# mypy: disable-error-code="no-untyped-def"
"""Tiles of products of float8 on Hopper: brought by tensor maps, added up by two warp groups.

One warp asks for what comes next, also for the next tile, and each of two warp groups has half of
a tile's rows, so that one multiplies while the other adds up. A tile has two parts of 128 outputs
for the same inputs: of gate and of up, or side by side.

What `many_hopper` is made of.

Legend: as in `scaled_experts`.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from raydix.kernels.device.gluon_barrier import thread_barrier
from raydix.kernels.fp8 import form
from raydix.kernels.moe.grouped_gemm import place_of

TILE_ROWS = 128
STAGES = gl.constexpr(4)
"""The number of blocks of inputs, with their weights, that are in flight or in use."""
BLOCK = gl.constexpr(form.BLOCK)
ROWS = gl.constexpr(TILE_ROWS // 2)
"""The number of rows of a warp group, which is half of a tile."""
BYTES = gl.constexpr(gl.NVMMASharedLayout(128, 8, 2))
BARRIER = gl.constexpr(mbarrier.MBarrierLayout())
SUMS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 32]))
SUM_ROWS = gl.constexpr(gl.SliceLayout(1, SUMS.value))
SUM_COLUMNS = gl.constexpr(gl.SliceLayout(0, SUMS.value))


@gluon.jit
def bring(
    maps,
    num_tiles,
    blocks,
    stages,
    OUTPUTS: gl.constexpr,
    INPUTS: gl.constexpr,
    IS_HIDDEN: gl.constexpr,
    TOGETHER: gl.constexpr,
):
    """Bring inputs and weights of all tiles, one block after the other, as there is room."""
    TILES: gl.constexpr = (OUTPUTS + 2 * BLOCK - 1) // (2 * BLOCK)
    COLUMNS: gl.constexpr = BLOCK if IS_HIDDEN else 2 * BLOCK
    OTHER_ROW: gl.constexpr = OUTPUTS // 2 if IS_HIDDEN else BLOCK
    x, matrices = maps
    experts_ptr, starts_ptr, _, firsts_ptr, counts_ptr = blocks
    x_ring, ring, ready, free = stages
    asked = 0
    for tile in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        block, column_tile = place_of(tile, firsts_ptr, counts_ptr, TILES, TOGETHER)
        start = gl.load(starts_ptr + block)
        row = gl.load(experts_ptr + block) * OUTPUTS + column_tile * COLUMNS
        for k_block in range(INPUTS // BLOCK):
            stage = asked % STAGES
            mbarrier.wait(free.index(stage), (asked // STAGES & 1) ^ 1)
            full = ready.index(2 * stage)
            k = k_block * BLOCK
            mbarrier.expect(full, (2 * ROWS + BLOCK) * BLOCK)
            tma.async_copy_global_to_shared(x, [start, k], full, x_ring.index(stage))
            tma.async_copy_global_to_shared(matrices, [row, k], full, ring.index(2 * stage))
            full = ready.index(2 * stage + 1)
            mbarrier.expect(full, BLOCK * BLOCK)
            other = ring.index(2 * stage + 1)
            tma.async_copy_global_to_shared(matrices, [row + OTHER_ROW, k], full, other)
            asked += 1


@gluon.jit
def _multiply_block(x, matrix, sums):
    """The product of 64 rows and 128 outputs over one block of inputs, in place of `sums`."""
    sums = warpgroup_mma(x, matrix.permute((1, 0)), sums, use_acc=False, is_async=True)
    return warpgroup_mma_wait(num_outstanding=0, deps=[sums])


@gluon.jit
def _now(values):
    """The same values, computed before what follows.

    LLVM would put off sums until both products are there, for which registers have no room.
    """
    return gl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [values], dtype=gl.float32, is_pure=False, pack=1
    )


@gluon.jit
def pass_by(stages, used, K_BLOCKS: gl.constexpr):
    """Leave a tile that has no rows for this warp group to the other."""
    _, _, ready, free = stages
    for each in range(used, used + K_BLOCKS):
        stage = each % STAGES
        mbarrier.wait(ready.index(2 * stage), each // STAGES & 1)
        mbarrier.wait(ready.index(2 * stage + 1), each // STAGES & 1)
        thread_barrier()
        mbarrier.arrive(free.index(stage), count=1)


@gluon.jit
def sum_blocks(
    stages,
    used,
    x_scale_ptr,
    is_row,
    num_rows,
    scale_ptr,
    other_ptr,
    FIRST_ROW: gl.constexpr,
    K_BLOCKS: gl.constexpr,
    PER_OUTPUT: gl.constexpr,
):
    """The sums of both parts of a tile over all blocks of inputs, for 64 rows."""
    x_ring, ring, ready, free = stages
    total = gl.zeros([ROWS, BLOCK], gl.float32, layout=SUMS)
    other_total = total
    sums = total
    for k_block in range(K_BLOCKS):
        stage = (used + k_block) % STAGES
        phase = (used + k_block) // STAGES & 1
        x_scales = gl.load(x_scale_ptr, mask=is_row, other=0.0)
        x_scale_ptr += num_rows
        scale = 1.0
        other_scale = 1.0
        if not PER_OUTPUT:
            scale = gl.load(scale_ptr + k_block)
            other_scale = gl.load(other_ptr + k_block)
        mbarrier.wait(ready.index(2 * stage), phase)
        x = x_ring.index(stage).slice(FIRST_ROW, ROWS)
        sums = _multiply_block(x, ring.index(2 * stage), sums)
        total = _now(total + sums * gl.expand_dims(x_scales * scale, 1))
        mbarrier.wait(ready.index(2 * stage + 1), phase)
        sums = _multiply_block(x, ring.index(2 * stage + 1), sums)
        # Every warp of the group has read what is there.
        thread_barrier()
        mbarrier.arrive(free.index(stage), count=1)
        other_total += sums * gl.expand_dims(x_scales * other_scale, 1)
    return total, other_total
