# mypy: disable-error-code="no-untyped-def"
"""The experts of an MoE layer: two grouped GEMMs over rows sorted by expert, then a sum.

The sum is over each token's choices. Weights come through tensor maps. With few rows per expert
they are the left operand: a tensor core's tile is 64 wide on that side, and as narrow as the rows
on the other. Tiles of an expert's blocks follow one another, so that its weights are read from
memory once; those of a large one by columns, as L2 has no room for all of it.

Legend: T tokens, K experts per token, X = T x K pairs, C hidden, I intermediate, E experts, B
blocks.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from raydix.kernels.dense.activation import activate, glu_constants, offset_up
from raydix.kernels.dense.glu_form import GluForm
from raydix.kernels.device.gpu import capability, num_sms
from raydix.kernels.moe.choice_sum import sum_over_choices
from raydix.kernels.moe.expert_biases import ExpertBiases
from raydix.kernels.moe.expert_inputs import (
    INTERLEAVED,
    check_biases,
    check_experts,
    num_together,
)
from raydix.kernels.moe.expert_tiles import TileShape, choose_tiles
from raydix.kernels.moe.permute import ExpertBlocks, permute_by_expert
from raydix.kernels.precision import precision_of

_MIN_LEFT_ROWS = tl.constexpr(64)
"""The number of a block's rows from which on they are the left operand of the product."""


def fused_experts(
    x_TC: Tensor,
    gate_up_EIC: Tensor,
    down_ECI: Tensor,
    weights_TK: Tensor,
    expert_ids_TK: Tensor,
    *,
    form: GluForm,
    biases: ExpertBiases | None,
) -> Tensor:
    """Weighted sum of the chosen experts' outputs, [T, C].

    x and the experts' weights and biases: bf16 or float32 (IEEE arithmetic). gate_up_EIC holds gate
    rows, then up rows. weights_TK: float32; expert_ids_TK: int32 or int64; ids outside of 0..E-1
    add nothing. Sums are in float32; each choice's weighted output is rounded once before the sum
    over K. Raises ValueError if a shape, dtype or stride differs.
    """
    check_experts(x_TC, gate_up_EIC, down_ECI, weights_TK, expert_ids_TK)
    check_biases(gate_up_EIC, down_ECI, biases)
    num_tokens, hidden = x_TC.shape
    if num_tokens == 0:
        return torch.empty_like(x_TC)

    num_experts, _, intermediate = down_ECI.shape
    tiles = choose_tiles(expert_ids_TK.numel(), num_experts, x_TC.dtype)
    blocks = permute_by_expert(expert_ids_TK, num_experts, tiles.block_rows)
    activated_XI = x_TC.new_empty((expert_ids_TK.numel(), intermediate))
    gate_up_EI = None if biases is None else biases.gate_up_EI
    choices = expert_ids_TK.shape[1]
    _gate_up(
        x_TC,
        gate_up_EIC,
        blocks,
        choices,
        tiles.gate_up,
        activated_XI,
        form=form,
        bias_EI=gate_up_EI,
    )
    choices_TKC = x_TC.new_empty((*expert_ids_TK.shape, hidden))
    down_EC = None if biases is None else biases.down_EC
    _down(activated_XI, down_ECI, weights_TK, blocks, tiles.down, choices_TKC, bias_EC=down_EC)
    return sum_over_choices(choices_TKC, expert_ids_TK, num_experts)


def _num_programs(blocks: ExpertBlocks, num_columns: int, shape: TileShape) -> int:
    """A fixed grid walks the tiles, whose number the device alone knows."""
    capacity = blocks.experts_B.numel() * triton.cdiv(num_columns, shape.columns)
    device = blocks.experts_B.device
    if shape.programs_per_sm is None or capability(device) is None:
        return capacity
    return min(capacity, num_sms(device) * shape.programs_per_sm)


def _gate_up(
    x_TC: Tensor,
    gate_up_EIC: Tensor,
    blocks: ExpertBlocks,
    choices: int,
    shape: TileShape,
    out_XI: Tensor,
    *,
    form: GluForm,
    bias_EI: Tensor | None,
) -> None:
    hidden, intermediate = x_TC.shape[1], out_XI.shape[1]
    by_eight = gate_up_EIC.view(-1, 2, intermediate // INTERLEAVED, INTERLEAVED, hidden).transpose(
        1, 2
    )
    gate_up = TensorDescriptor(
        by_eight,
        list(by_eight.shape),
        list(by_eight.stride()),
        [1, shape.columns // INTERLEAVED, 2, INTERLEAVED, shape.depth],
    )

    kind, slope, limit = glu_constants(form)
    _gate_up_glu[(_num_programs(blocks, intermediate, shape),)](
        x_TC,
        gate_up,
        bias_EI,
        blocks.pairs_X,
        blocks.num_blocks_1,
        blocks.experts_B,
        blocks.starts_B,
        blocks.ends_B,
        blocks.firsts_B,
        blocks.counts_B,
        out_XI,
        x_TC.stride(0),
        CHOICES=choices,
        HIDDEN=hidden,
        INTERMEDIATE=intermediate,
        ROWS=blocks.block_rows,
        COLUMNS=shape.columns,
        DEPTH=shape.depth,
        TOGETHER=num_together(gate_up_EIC),
        KIND=kind,
        SLOPE=slope,
        LIMIT=limit,
        PRECISION=precision_of(x_TC.dtype),
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
    )


def _down(
    x_XI: Tensor,
    down_ECI: Tensor,
    weights_TK: Tensor,
    blocks: ExpertBlocks,
    shape: TileShape,
    out_TKC: Tensor,
    *,
    bias_EC: Tensor | None,
) -> None:
    hidden, intermediate = down_ECI.shape[1:]

    _down_weighted[(_num_programs(blocks, hidden, shape),)](
        TensorDescriptor.from_tensor(x_XI, [blocks.block_rows, shape.depth]),
        TensorDescriptor.from_tensor(down_ECI.view(-1, intermediate), [shape.columns, shape.depth]),
        bias_EC,
        weights_TK,
        blocks.pairs_X,
        blocks.num_blocks_1,
        blocks.experts_B,
        blocks.starts_B,
        blocks.ends_B,
        blocks.firsts_B,
        blocks.counts_B,
        out_TKC,
        HIDDEN=hidden,
        INTERMEDIATE=intermediate,
        ROWS=blocks.block_rows,
        COLUMNS=shape.columns,
        DEPTH=shape.depth,
        TOGETHER=num_together(down_ECI),
        PRECISION=precision_of(x_XI.dtype),
        num_warps=shape.num_warps,
        num_stages=shape.num_stages,
    )


@triton.jit
def place_of(tile, firsts_ptr, counts_ptr, tiles_per_block, TOGETHER: tl.constexpr):
    """The block of a tile, and which of the block's tiles it is."""
    block = tile // tiles_per_block
    column_tile = tile % tiles_per_block
    if TOGETHER > 1:
        first_block = tl.load(firsts_ptr + block)
        own_tile = tile - first_block * tiles_per_block
        first_together = own_tile // (tiles_per_block * TOGETHER) * TOGETHER
        num_together = tl.minimum(tl.load(counts_ptr + block) - first_together, TOGETHER)

        own_tile -= first_together * tiles_per_block
        block = first_block + first_together + own_tile % num_together
        column_tile = own_tile // num_together
    return block, column_tile


@triton.jit
def _gate_up_glu(
    x_ptr,
    gate_up,
    bias_ptr,
    pairs_ptr,
    num_blocks_ptr,
    block_experts_ptr,
    block_starts_ptr,
    block_ends_ptr,
    block_firsts_ptr,
    block_counts_ptr,
    out_ptr,
    x_stride,
    CHOICES: tl.constexpr,
    HIDDEN: tl.constexpr,
    INTERMEDIATE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    TOGETHER: tl.constexpr,
    KIND: tl.constexpr,
    SLOPE: tl.constexpr,
    LIMIT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The hidden layer of the tokens of a block: out[X, I], rows in the order of `pairs`."""
    tiles_per_block: tl.constexpr = (INTERMEDIATE + COLUMNS - 1) // COLUMNS
    num_tiles = tl.load(num_blocks_ptr) * tiles_per_block
    depth = tl.arange(0, DEPTH)
    for tile in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        block, column_tile = place_of(
            tile, block_firsts_ptr, block_counts_ptr, tiles_per_block, TOGETHER
        )
        first_column = column_tile * COLUMNS
        row = tl.load(block_starts_ptr + block) + tl.arange(0, ROWS)
        is_row = row < tl.load(block_ends_ptr + block)
        # Rows past the block's end read token 0: only their own results, which are dropped, depend
        # on it.
        token = tl.load(pairs_ptr + row, mask=is_row, other=0) // CHOICES
        x_row_ptr = x_ptr + token.to(tl.int64)[:, None] * x_stride + depth[None, :]
        expert = tl.load(block_experts_ptr + block)
        both = tl.zeros(
            [2 * COLUMNS, ROWS] if ROWS < _MIN_LEFT_ROWS else [ROWS, 2 * COLUMNS], tl.float32
        )
        for k in range(0, HIDDEN, DEPTH):
            if HIDDEN % DEPTH == 0:
                x = tl.load(x_row_ptr + k)
            else:
                x = tl.load(x_row_ptr + k, mask=(depth + k < HIDDEN)[None, :], other=0.0)
            weights = gate_up.load([expert, first_column // 8, 0, 0, k]).reshape(2 * COLUMNS, DEPTH)
            if ROWS < _MIN_LEFT_ROWS:
                both = tl.dot(weights, x.T, both, input_precision=PRECISION)
            else:
                both = tl.dot(x, weights.T, both, input_precision=PRECISION)
        column = first_column + tl.arange(0, COLUMNS)
        is_column = column < INTERMEDIATE
        # Activated as the product lies in registers: only the result changes its layout.
        if ROWS < _MIN_LEFT_ROWS:
            gate, up = both.reshape(COLUMNS // 8, 2, 8, ROWS).permute(0, 2, 3, 1).split()
        else:
            gate, up = both.reshape(ROWS, COLUMNS // 8, 2, 8).permute(0, 1, 3, 2).split()
        if bias_ptr is not None:
            gate_bias_ptr = bias_ptr + expert.to(tl.int64) * 2 * INTERMEDIATE + column
            gate_bias = tl.load(gate_bias_ptr, mask=is_column, other=0.0)
            up_bias = tl.load(gate_bias_ptr + INTERMEDIATE, mask=is_column, other=0.0)
            axis: tl.constexpr = 2 if ROWS < _MIN_LEFT_ROWS else 0
            gate += tl.expand_dims(gate_bias.reshape(COLUMNS // 8, 8), axis).to(tl.float32)
            up += tl.expand_dims(up_bias.reshape(COLUMNS // 8, 8), axis).to(tl.float32)
        activated = activate(gate, KIND, SLOPE, LIMIT) * offset_up(up, KIND, LIMIT)
        if ROWS < _MIN_LEFT_ROWS:
            activated = activated.reshape(COLUMNS, ROWS).T
        else:
            activated = activated.reshape(ROWS, COLUMNS)
        out_row_ptr = out_ptr + row.to(tl.int64)[:, None] * INTERMEDIATE + column[None, :]
        is_out = is_row[:, None] & is_column[None, :]
        tl.store(out_row_ptr, activated.to(out_ptr.dtype.element_ty), mask=is_out)


@triton.jit
def _down_weighted(
    x,
    down,
    bias_ptr,
    weights_ptr,
    pairs_ptr,
    num_blocks_ptr,
    block_experts_ptr,
    block_starts_ptr,
    block_ends_ptr,
    block_firsts_ptr,
    block_counts_ptr,
    out_ptr,
    HIDDEN: tl.constexpr,
    INTERMEDIATE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    TOGETHER: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Each row's expert output times the weight of its choice, to its place in out[T, K, C]."""
    tiles_per_block: tl.constexpr = (HIDDEN + COLUMNS - 1) // COLUMNS
    num_tiles = tl.load(num_blocks_ptr) * tiles_per_block
    for tile in tl.range(tl.program_id(0), num_tiles, tl.num_programs(0), flatten=True):
        block, column_tile = place_of(
            tile, block_firsts_ptr, block_counts_ptr, tiles_per_block, TOGETHER
        )
        first_column = column_tile * COLUMNS
        start = tl.load(block_starts_ptr + block)
        row = start + tl.arange(0, ROWS)
        is_row = row < tl.load(block_ends_ptr + block)
        down_row = tl.load(block_experts_ptr + block) * HIDDEN + first_column
        total = tl.zeros([COLUMNS, ROWS] if ROWS < _MIN_LEFT_ROWS else [ROWS, COLUMNS], tl.float32)
        for k in range(0, INTERMEDIATE, DEPTH):
            # Rows past the block's end are another expert's: only their own results, which are
            # dropped, see them.
            if ROWS < _MIN_LEFT_ROWS:
                total = tl.dot(
                    down.load([down_row, k]), x.load([start, k]).T, total, input_precision=PRECISION
                )
            else:
                total = tl.dot(
                    x.load([start, k]), down.load([down_row, k]).T, total, input_precision=PRECISION
                )
        if ROWS < _MIN_LEFT_ROWS:
            total = total.T
        column = first_column + tl.arange(0, COLUMNS)
        is_column = column < HIDDEN
        if bias_ptr is not None:
            expert = tl.load(block_experts_ptr + block).to(tl.int64)
            bias = tl.load(bias_ptr + expert * HIDDEN + column, mask=is_column, other=0.0)
            total += bias.to(tl.float32)[None, :]
        pair = tl.load(pairs_ptr + row, mask=is_row, other=0)
        total *= tl.load(weights_ptr + pair, mask=is_row, other=0.0)[:, None]
        out_row_ptr = out_ptr + pair.to(tl.int64)[:, None] * HIDDEN + column[None, :]
        is_out = is_row[:, None] & is_column[None, :]
        tl.store(out_row_ptr, total.to(out_ptr.dtype.element_ty), mask=is_out)
