# mypy: disable-error-code="no-untyped-def"
"""Both products of experts in float8, for many rows on Hopper.

The same computations as `expert_hidden` and `expert_outputs`, in Gluon, which lets us say what
Triton decides badly; see `hopper_tiles`.

Legend: as in `scaled_experts`.
"""

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from raydix.kernels.dense.activation import activate, glu_constants, offset_up
from raydix.kernels.dense.glu_form import GluForm
from raydix.kernels.device.gluon_barrier import thread_barrier
from raydix.kernels.device.gpu import capability, num_sms
from raydix.kernels.fp8.chosen_rows import round_chosen
from raydix.kernels.fp8.expert_inputs import Rows
from raydix.kernels.fp8.few_hopper import round_rows
from raydix.kernels.fp8.hopper_tiles import (
    BARRIER,
    BLOCK,
    BYTES,
    ROWS,
    STAGES,
    SUM_COLUMNS,
    SUM_ROWS,
    TILE_ROWS,
    bring,
    pass_by,
    sum_blocks,
)
from raydix.kernels.moe.expert_inputs import num_together
from raydix.kernels.moe.grouped_gemm import place_of
from raydix.kernels.moe.permute import ExpertBlocks
from raydix.kernels.weights.scaled_weight import ScaledWeight

MIN_MEAN_ROWS = 26
"""The mean number of rows of an expert above which these are faster than Triton's."""
_FIRST = gl.constexpr(0)
_CAPABILITY = (9, 0)


def fits(x_TC: Tensor, gate_up: ScaledWeight, down: ScaledWeight, num_pairs: int) -> bool:
    """Are these made for such experts, and for so many rows of them?"""
    num_experts, hidden, intermediate = down.numbers.matrix_OC.shape
    return (
        x_TC.dtype == torch.bfloat16
        and num_pairs > MIN_MEAN_ROWS * num_experts
        and hidden % BLOCK.value == 0
        and intermediate % BLOCK.value == 0
        and gate_up.scales_BD.is_contiguous()
        and down.scales_BD.is_contiguous()
        and capability(x_TC.device) == _CAPABILITY
    )


def compute_choices(
    x_TC: Tensor,
    gate_up: ScaledWeight,
    down: ScaledWeight,
    weights_TK: Tensor,
    blocks: ExpertBlocks,
    choices_TKC: Tensor,
    *,
    form: GluForm,
) -> None:
    """Fill each choice's weighted output, of experts that fit; others stay as they are.

    blocks: of TILE_ROWS rows. A hidden layer is rounded to bf16 and then to float8.
    """
    num_pairs, hidden = weights_TK.numel(), x_TC.shape[1]
    # Outputs are not there before the last row has been read, and take more memory.
    numbers_XC = choices_TKC.view(-1).view(torch.float8_e4m3fn)[: num_pairs * hidden]
    rows = Rows(numbers_XC.view(num_pairs, hidden), _scales(x_TC, num_pairs, hidden))
    round_chosen(x_TC, blocks, rows)
    intermediate = down.numbers.matrix_OC.shape[-1]
    hidden_XI = numbers_XC.new_empty((num_pairs, intermediate))
    hidden_rows = Rows(hidden_XI, _scales(x_TC, num_pairs, intermediate))
    _launch(rows, gate_up, blocks, hidden_rows, None, glu_constants(form))
    _launch(hidden_rows, down, blocks, Rows(choices_TKC, None), weights_TK, (0, 1.0, 0.0))


def _scales(x_TC: Tensor, num_rows: int, size: int) -> Tensor:
    """Room for the scales of so many rows, [D, X]."""
    return x_TC.new_empty((size // BLOCK.value, num_rows), dtype=torch.float32)


def _launch(
    rows: Rows,
    weight: ScaledWeight,
    blocks: ExpertBlocks,
    out: Rows,
    weights_TK: Tensor | None,
    glu: tuple[int, float, float],
) -> None:
    """Run the kernel: for a hidden layer, if that has scales, or for outputs."""
    assert rows.scales_DT is not None
    num_rows = rows.values.shape[0]
    matrix_OC = weight.numbers.matrix_OC
    _, outputs, inputs = matrix_OC.shape
    matrices = matrix_OC.view(-1, inputs)
    tiles_per_block = triton.cdiv(outputs, 2 * BLOCK.value)
    capacity = blocks.experts_B.numel() * tiles_per_block
    box = [BLOCK.value, BLOCK.value]
    kind, slope, limit = glu
    _multiply_tiles[(min(capacity, num_sms(out.values.device)),)](
        TensorDescriptor.from_tensor(rows.values, [TILE_ROWS, BLOCK.value], BYTES.value),
        rows.scales_DT,
        TensorDescriptor.from_tensor(matrices, box, BYTES.value),
        weight.scales_BD,
        weights_TK,
        blocks.pairs_X,
        blocks.num_blocks_1,
        blocks.experts_B,
        blocks.starts_B,
        blocks.ends_B,
        blocks.firsts_B,
        blocks.counts_B,
        out.values,
        out.scales_DT,
        num_rows,
        OUTPUTS=outputs,
        INPUTS=inputs,
        TOGETHER=num_together(matrix_OC),
        PER_OUTPUT=weight.is_per_output,
        KIND=kind,
        SLOPE=slope,
        LIMIT=limit,
        num_warps=4,
    )


@gluon.jit
def _times_scales(total, scales_ptr, first, OUTPUTS: gl.constexpr):
    """Multiply by the scales of single outputs, from `first` on."""
    column = first + gl.arange(0, BLOCK, layout=SUM_COLUMNS)
    scales = gl.load(scales_ptr + column, mask=column < OUTPUTS, other=0.0)
    return total * gl.expand_dims(scales, 0)


@gluon.jit
def _store_rows(values, out_ptr, place, is_row, first, SIZE: gl.constexpr, LAYOUT: gl.constexpr):
    """Store rows of 128 values, from column `first` on. place: the index of each row."""
    values = gl.convert_layout(values, LAYOUT)
    column = first + gl.arange(0, BLOCK, layout=gl.SliceLayout(0, LAYOUT))
    out_row_ptr = out_ptr + gl.expand_dims(place.to(gl.int64) * SIZE, 1)
    is_out = gl.expand_dims(is_row, 1) & gl.expand_dims(column < SIZE, 0)
    gl.store(out_row_ptr + gl.expand_dims(column, 0), values, mask=is_out)


@gluon.jit
def _store_hidden(
    total,
    other_total,
    tensors,
    first_row,
    end,
    num_rows,
    column_tile,
    SIZE: gl.constexpr,
    KIND: gl.constexpr,
    SLOPE: gl.constexpr,
    LIMIT: gl.constexpr,
):
    """Store a block of the hidden layer, from gate and up."""
    _, _, _, _, out_ptr, out_scales_ptr = tensors
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 16], [4, 8], [4, 1], [1, 0])
    hidden = activate(total, KIND, SLOPE, LIMIT) * offset_up(other_total, KIND, LIMIT)
    numbers, scales = round_rows(hidden.to(gl.bfloat16))
    out_row = first_row + gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))
    _store_rows(numbers, out_ptr, out_row, out_row < end, column_tile * BLOCK, SIZE, LAYOUT)
    row = first_row + gl.arange(0, ROWS, layout=SUM_ROWS)
    out_scale_ptr = out_scales_ptr + column_tile.to(gl.int64) * num_rows + row
    gl.store(out_scale_ptr, scales, mask=row < end)


@gluon.jit
def _store_outputs(total, other_total, tensors, first_row, end, first_column, SIZE: gl.constexpr):
    """Store outputs, each row times the weight of its choice, in the choice's place."""
    _, _, weights_ptr, pairs_ptr, out_ptr, _ = tensors
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    row = first_row + gl.arange(0, ROWS, layout=SUM_ROWS)
    pair = gl.load(pairs_ptr + row, mask=row < end, other=0)
    weights = gl.expand_dims(gl.load(weights_ptr + pair), 1)
    out_row = first_row + gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))
    is_row = out_row < end
    out_pair = gl.load(pairs_ptr + out_row, mask=is_row, other=0)
    value = (total * weights).to(gl.bfloat16)
    _store_rows(value, out_ptr, out_pair, is_row, first_column, SIZE, LAYOUT)
    value = (other_total * weights).to(gl.bfloat16)
    _store_rows(value, out_ptr, out_pair, is_row, first_column + BLOCK, SIZE, LAYOUT)


@gluon.jit
def _multiply(
    tensors,
    num_rows,
    num_tiles,
    blocks,
    stages,
    FIRST_ROW: gl.constexpr,
    OUTPUTS: gl.constexpr,
    INPUTS: gl.constexpr,
    IS_HIDDEN: gl.constexpr,
    TOGETHER: gl.constexpr,
    PER_OUTPUT: gl.constexpr,
    KIND: gl.constexpr,
    SLOPE: gl.constexpr,
    LIMIT: gl.constexpr,
):
    """All tiles of a program, for the 64 rows from FIRST_ROW on of each."""
    TILES: gl.constexpr = (OUTPUTS + 2 * BLOCK - 1) // (2 * BLOCK)
    COLUMNS: gl.constexpr = BLOCK if IS_HIDDEN else 2 * BLOCK
    OTHER_ROW: gl.constexpr = OUTPUTS // 2 if IS_HIDDEN else BLOCK
    K_BLOCKS: gl.constexpr = INPUTS // BLOCK
    SCALES: gl.constexpr = OUTPUTS if PER_OUTPUT else OUTPUTS // BLOCK * K_BLOCKS
    x_scales_ptr, scales_ptr, _, _, _, _ = tensors
    experts_ptr, starts_ptr, ends_ptr, firsts_ptr, counts_ptr = blocks
    used = 0
    for tile in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        block, column_tile = place_of(tile, firsts_ptr, counts_ptr, TILES, TOGETHER)
        first_row = gl.load(starts_ptr + block) + FIRST_ROW
        end = gl.load(ends_ptr + block)
        first_column = column_tile * COLUMNS
        own_scales_ptr = scales_ptr + gl.load(experts_ptr + block).to(gl.int64) * SCALES
        if first_row < end:
            scale_ptr = own_scales_ptr + first_column // BLOCK * K_BLOCKS
            # Where there is no second part, its sums are dropped.
            other_block = gl.minimum(first_column + OTHER_ROW, OUTPUTS - 1) // BLOCK
            other_ptr = own_scales_ptr + other_block * K_BLOCKS
            row = first_row + gl.arange(0, ROWS, layout=SUM_ROWS)
            total, other_total = sum_blocks(
                stages,
                used,
                x_scales_ptr + row,
                row < end,
                num_rows,
                scale_ptr,
                other_ptr,
                FIRST_ROW,
                K_BLOCKS,
                PER_OUTPUT,
            )
            if PER_OUTPUT:
                total = _times_scales(total, own_scales_ptr, first_column, OUTPUTS)
                first = first_column + OTHER_ROW
                other_total = _times_scales(other_total, own_scales_ptr, first, OUTPUTS)
            if IS_HIDDEN:
                _store_hidden(
                    total,
                    other_total,
                    tensors,
                    first_row,
                    end,
                    num_rows,
                    column_tile,
                    OUTPUTS // 2,
                    KIND,
                    SLOPE,
                    LIMIT,
                )
            else:
                _store_outputs(total, other_total, tensors, first_row, end, first_column, OUTPUTS)
        else:
            pass_by(stages, used, K_BLOCKS)
        used += K_BLOCKS


@gluon.jit(do_not_specialize=["num_rows"])
def _multiply_tiles(
    x,
    x_scales_ptr,
    matrices,
    scales_ptr,
    weights_ptr,
    pairs_ptr,
    num_blocks_ptr,
    block_experts_ptr,
    block_starts_ptr,
    block_ends_ptr,
    block_firsts_ptr,
    block_counts_ptr,
    out_ptr,
    out_scales_ptr,
    num_rows,
    OUTPUTS: gl.constexpr,
    INPUTS: gl.constexpr,
    TOGETHER: gl.constexpr,
    PER_OUTPUT: gl.constexpr,
    KIND: gl.constexpr,
    SLOPE: gl.constexpr,
    LIMIT: gl.constexpr,
):
    """A program's tiles: of the hidden layer, if that has scales, or of weighted outputs."""
    x_ring = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, 2 * ROWS, BLOCK], BYTES)
    ring = gl.allocate_shared_memory(gl.float8e4nv, [2 * STAGES, BLOCK, BLOCK], BYTES)
    ready = gl.allocate_shared_memory(gl.int64, [2 * STAGES, 1], BARRIER)
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER)
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(2 * stage), count=1)
        mbarrier.init(ready.index(2 * stage + 1), count=1)
        mbarrier.init(free.index(stage), count=2)
    fence_async_shared()
    thread_barrier()

    IS_HIDDEN: gl.constexpr = out_scales_ptr is not None
    num_tiles = gl.load(num_blocks_ptr) * ((OUTPUTS + 2 * BLOCK - 1) // (2 * BLOCK))
    blocks = (
        block_experts_ptr,
        block_starts_ptr,
        block_ends_ptr,
        block_firsts_ptr,
        block_counts_ptr,
    )
    maps = (x, matrices)
    stages = (x_ring, ring, ready, free)
    tensors = (x_scales_ptr, scales_ptr, weights_ptr, pairs_ptr, out_ptr, out_scales_ptr)
    # Warps of the second group and of what brings, and registers of their threads.
    gl.warp_specialize(
        [
            (
                _multiply,
                (
                    tensors,
                    num_rows,
                    num_tiles,
                    blocks,
                    stages,
                    _FIRST,
                    OUTPUTS,
                    INPUTS,
                    IS_HIDDEN,
                    TOGETHER,
                    PER_OUTPUT,
                    KIND,
                    SLOPE,
                    LIMIT,
                ),
            ),
            (
                _multiply,
                (
                    tensors,
                    num_rows,
                    num_tiles,
                    blocks,
                    stages,
                    ROWS,
                    OUTPUTS,
                    INPUTS,
                    IS_HIDDEN,
                    TOGETHER,
                    PER_OUTPUT,
                    KIND,
                    SLOPE,
                    LIMIT,
                ),
            ),
            (
                bring,
                (maps, num_tiles, blocks, stages, OUTPUTS, INPUTS, IS_HIDDEN, TOGETHER),
            ),
        ],
        [4, 1],
        [240, 24],
    )
    for stage in gl.static_range(STAGES):
        mbarrier.invalidate(ready.index(2 * stage))
        mbarrier.invalidate(ready.index(2 * stage + 1))
        mbarrier.invalidate(free.index(stage))
