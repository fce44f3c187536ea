# mypy: disable-error-code="no-untyped-def"
"""A linear layer of float8 in blocks, for few tokens on Hopper: as long as reading its weights.

As `dense.small_linear`: all tiles of weights are divided equally among a fixed number of programs,
and the first are on their way before the kernel ahead on the stream has ended. A step is two blocks
of inputs, which each program rounds for itself.

Legend: T tokens, C inputs, O outputs, S summands.
"""

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from raydix.kernels.dense.small_linear import Division, LinearShape, divide, has_tensor_cores
from raydix.kernels.dense.summand_store import store_summand
from raydix.kernels.dense.summands import MAX_SUMMANDS
from raydix.kernels.device.early_launch import early_launch
from raydix.kernels.device.gluon_barrier import thread_barrier
from raydix.kernels.device.gpu import num_sms
from raydix.kernels.fp8 import form
from raydix.kernels.fp8.weight_inputs import scale_strides
from raydix.kernels.weights.scaled_weight import ScaledWeight

PARTS = 2
"""The blocks of inputs of a step."""
_ROWS_OF_TILE = 64


def _shape(num_stages: int, programs_per_sm: int) -> LinearShape:
    return LinearShape(
        rows=_ROWS_OF_TILE,
        depth=form.BLOCK * PARTS,
        num_stages=num_stages,
        programs_per_sm=programs_per_sm,
    )


SHAPES = {16: _shape(2, 5), 32: _shape(3, 3)}
"""Up to how many tokens each is taken: the best of five or more for nearly all of DeepSeek-V3's and
Qwen3-30B's layers (H100, 2026-11-28). Of more tokens `scaled_product` is faster.
"""
MAX_TOKENS = max(SHAPES)
_ROWS = gl.constexpr(_ROWS_OF_TILE)
_BLOCK = gl.constexpr(form.BLOCK)
_BYTES = gl.constexpr(gl.NVMMASharedLayout(128, 8, 2))
_BARRIER = gl.constexpr(mbarrier.MBarrierLayout())
_SCALES = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
_ROUNDED = gl.constexpr(gl.BlockedLayout([1, 16], [4, 8], [4, 1], [1, 0]))
"""The layout of inputs as they are rounded: eight threads have a block of a token."""
_SMALLEST_MAGNITUDE = gl.constexpr(form.SMALLEST_MAGNITUDE)
_MANTISSA_BITS = gl.constexpr(form.MANTISSA_BITS)
_ROUND_UP = gl.constexpr(form.ROUND_UP)
_LARGEST_EXPONENT = gl.constexpr(form.LARGEST_EXPONENT)


def fits(x_TC: Tensor, weight: ScaledWeight) -> bool:
    """Is `multiply_few` made for this product?"""
    return (
        x_TC.dtype == torch.bfloat16
        and 0 < len(x_TC) <= MAX_TOKENS
        and has_tensor_cores(x_TC.device)
        and _division(x_TC, weight).num_summands <= MAX_SUMMANDS
    )


def multiply_few(x_TC: Tensor, weight: ScaledWeight) -> Tensor:
    """The product [T, O], or float32 summands of it, [S, T, O], of inputs and weights that fit."""
    matrix_OC = weight.numbers.matrix_OC
    num_tokens, (outputs, inputs) = len(x_TC), matrix_OC.shape
    tokens, division = _tile_tokens(x_TC), _division(x_TC, weight)
    if division.num_summands == 1:
        out = x_TC.new_empty((num_tokens, outputs))
    else:
        out = x_TC.new_empty((division.num_summands, num_tokens, outputs), dtype=torch.float32)

    row_stride, block_stride = scale_strides(weight)
    _multiply_share[(division.num_programs,)](
        x_TC,
        TensorDescriptor.from_tensor(matrix_OC, [_ROWS_OF_TILE, form.BLOCK], _BYTES.value),
        weight.scales_BD,
        weight.numbers.bias_O,
        out,
        num_tokens,
        outputs,
        inputs,
        x_TC.stride(0),
        row_stride,
        block_stride,
        division.row_steps,
        division.all_steps,
        division.program_steps,
        TOKENS=tokens,
        PARTS=PARTS,
        STAGES=SHAPES[tokens].num_stages,
        SUMMANDS=division.num_summands,
        PER_OUTPUT=weight.is_per_output,
        num_warps=4,
        **early_launch(x_TC.device),
    )
    return out


def _tile_tokens(x_TC: Tensor) -> int:
    """The tokens of a tile, some of which may be none."""
    return next(most for most in SHAPES if len(x_TC) <= most)


def _division(x_TC: Tensor, weight: ScaledWeight) -> Division:
    """The tiles of each program."""
    shape = SHAPES[_tile_tokens(x_TC)]
    return divide(weight.numbers.matrix_OC.shape, shape, num_sms(x_TC.device))


@gluon.jit
def _ask_for_weights(
    weights,
    ring,
    ready,
    index,
    share,
    PARTS: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Ask for the weights of a step, if there is one."""
    first, num_steps, row_steps = share
    step = first + index
    stage = index % STAGES
    is_step = index < num_steps
    mbarrier.expect(ready.index(stage), _ROWS * PARTS * _BLOCK, pred=is_step)
    row = step // row_steps * _ROWS
    column = step % row_steps * (PARTS * _BLOCK)
    for part in gl.static_range(PARTS):
        tma.async_copy_global_to_shared(
            weights,
            [row, column + part * _BLOCK],
            ready.index(stage),
            ring.index(stage * PARTS + part),
            pred=is_step,
        )


@gluon.jit
def round_rows(x):
    """Rows of one block each as float8, and their scales: what `rounding.round_rows` returns."""
    x = x.to(gl.float32)
    largest = gl.maximum(gl.max(gl.abs(x), 1), _SMALLEST_MAGNITUDE)
    bits = largest.to(gl.int32, bitcast=True)
    exponent = ((bits + _ROUND_UP) >> _MANTISSA_BITS) - _LARGEST_EXPONENT
    scales = (exponent << _MANTISSA_BITS).to(gl.float32, bitcast=True)
    # As they are stored, the exponents of a power of two and of its inverse add up to this.
    inverses = ((254 - exponent) << _MANTISSA_BITS).to(gl.float32, bitcast=True)
    return (x * gl.expand_dims(inverses, 1)).to(gl.float8e4nv), scales


@gluon.jit
def _load_rows(
    x_ptr, x_stride, num_tokens, inputs, index, share, TOKENS: gl.constexpr, PARTS: gl.constexpr
):
    """A step's inputs, [TOKENS x PARTS, BLOCK]; past the last token those of the last."""
    first, num_steps, row_steps = share
    row = gl.arange(0, TOKENS * PARTS, layout=gl.SliceLayout(1, _ROUNDED))
    column = gl.arange(0, _BLOCK, layout=gl.SliceLayout(0, _ROUNDED))
    token = gl.minimum(row % TOKENS, num_tokens - 1)
    start = (first + index) % row_steps * (PARTS * _BLOCK) + row // TOKENS * _BLOCK
    place = gl.expand_dims(start, 1) + gl.expand_dims(column, 0)
    row_ptr = x_ptr + token.to(gl.int64) * x_stride
    is_input = (place < inputs) & (index < num_steps)
    return gl.load(gl.expand_dims(row_ptr, 1) + place, mask=is_input, other=0.0)


@gluon.jit
def _load_scales(
    scales_ptr, inputs, strides, index, share, PARTS: gl.constexpr, PER_OUTPUT: gl.constexpr
):
    """The scales of the weights of each part of a step; past the last step those of the last.

    Those of single outputs multiply at the end.
    """
    first, num_steps, row_steps = share
    row_stride, block_stride = strides
    step = first + gl.minimum(index, num_steps - 1)
    row = step // row_steps * _ROWS // _BLOCK
    last_block = (inputs + _BLOCK - 1) // _BLOCK - 1
    scales = ()
    for part in gl.static_range(PARTS):
        block = gl.minimum(step % row_steps * PARTS + part, last_block)
        scale = 1.0
        if not PER_OUTPUT:
            scale = gl.load(scales_ptr + row * row_stride + block * block_stride)
        scales = scales + (scale,)  # type: ignore[assignment]
    return scales


@gluon.jit(do_not_specialize=["num_tokens", "row_steps", "all_steps", "program_steps"])
def _multiply_share(
    x_ptr,
    weights,
    scales_ptr,
    bias_ptr,
    out_ptr,
    num_tokens,
    outputs,
    inputs,
    x_stride,
    row_stride,
    block_stride,
    row_steps,
    all_steps,
    program_steps,
    TOKENS: gl.constexpr,
    PARTS: gl.constexpr,
    STAGES: gl.constexpr,
    SUMMANDS: gl.constexpr,
    PER_OUTPUT: gl.constexpr,
    EARLY: gl.constexpr,
):
    """A program's steps. Weights are the left operand: the tokens are the narrow side."""
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TOKENS, 32])
    program = gl.program_id(0)
    first = program * program_steps
    num_steps = gl.minimum(program_steps, all_steps - first)
    share = (first, num_steps, row_steps)
    ring = gl.allocate_shared_memory(gl.float8e4nv, [STAGES * PARTS, _ROWS, _BLOCK], _BYTES)
    x_ring = gl.allocate_shared_memory(gl.float8e4nv, [2, PARTS * TOKENS, _BLOCK], _BYTES)
    scale_ring = gl.allocate_shared_memory(gl.float32, [2, PARTS * TOKENS], _SCALES)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], _BARRIER)
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
    fence_async_shared()
    thread_barrier()
    for stage in gl.static_range(STAGES):
        _ask_for_weights(weights, ring, ready, stage, share, PARTS, STAGES)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    next_rows = _load_rows(x_ptr, x_stride, num_tokens, inputs, 0, share, TOKENS, PARTS)

    row = gl.arange(0, _ROWS, layout=gl.SliceLayout(1, SUMS))
    token = gl.arange(0, TOKENS, layout=gl.SliceLayout(0, SUMS))
    is_token = gl.expand_dims(token < num_tokens, 0)
    size = num_tokens * outputs
    zeros = gl.zeros([_ROWS, TOKENS], gl.float32, layout=SUMS)
    total = zeros
    strides = (row_stride, block_stride)
    scales = _load_scales(scales_ptr, inputs, strides, 0, share, PARTS, PER_OUTPUT)
    for index in range(num_steps):
        current = index % STAGES
        side = index % 2
        numbers, x_scales = round_rows(next_rows)
        x_ring.index(side).store(numbers)
        scale_ring.index(side).store(x_scales)
        fence_async_shared()
        thread_barrier()
        # Inputs and scales are loaded a step ahead: what rounds and multiplies would wait for them.
        next_rows = _load_rows(x_ptr, x_stride, num_tokens, inputs, index + 1, share, TOKENS, PARTS)
        next_scales = _load_scales(scales_ptr, inputs, strides, index + 1, share, PARTS, PER_OUTPUT)
        mbarrier.wait(ready.index(current), index // STAGES & 1)
        step = first + index
        tile_row = step // row_steps
        for part in gl.static_range(PARTS):
            sums = warpgroup_mma(
                ring.index(current * PARTS + part),
                x_ring.index(side).slice(part * TOKENS, TOKENS).permute((1, 0)),
                zeros,
                use_acc=False,
                is_async=True,
            )
            own_scales = scale_ring.index(side).slice(part * TOKENS, TOKENS)
            factor = own_scales.load(gl.SliceLayout(0, SUMS)) * scales[part]
            sums = warpgroup_mma_wait(num_outstanding=0, deps=[sums])
            total += sums * gl.expand_dims(factor, 0)
        scales = next_scales
        # Before a stage is filled again every warp has to have read it.
        thread_barrier()
        _ask_for_weights(weights, ring, ready, index + STAGES, share, PARTS, STAGES)

        is_row_done = step % row_steps == row_steps - 1
        if is_row_done | (index == num_steps - 1):
            summand = program - tile_row * row_steps // program_steps
            output = tile_row * _ROWS + row
            is_output = output < outputs
            value = total
            if PER_OUTPUT:
                own = gl.load(scales_ptr + output * row_stride, mask=is_output, other=0.0)
                value = value * gl.expand_dims(own, 1)
            if bias_ptr is not None:
                bias = gl.load(bias_ptr + output, mask=is_output & (summand == 0), other=0.0)
                value += gl.expand_dims(bias.to(gl.float32), 1)
            out_row_ptr = out_ptr + gl.expand_dims(token, 0) * outputs + gl.expand_dims(output, 1)
            is_out = is_token & gl.expand_dims(is_output, 1)
            store_summand(out_row_ptr, value, zeros, is_out, summand, size, is_row_done, SUMMANDS)
            total = zeros

    for stage in gl.static_range(STAGES):
        mbarrier.invalidate(ready.index(stage))
