# mypy: disable-error-code="no-untyped-def"
"""A linear layer of a few tokens, which takes as long as reading its weights.

All tiles of the weights, row of tiles after row, are divided equally among a fixed number of
programs: whatever the matrix, all of them end together. Where two programs share a row of tiles,
each leaves a summand. The first tiles are on their way before the kernel ahead on the stream has
ended, for weights do not depend on it.

Written in Gluon, as Triton orders loads by itself. Legend: T tokens, C inputs, O outputs, S
summands.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from raydix.kernels.dense.summand_store import store_summand
from raydix.kernels.dense.summands import add_up
from raydix.kernels.device.early_launch import early_launch
from raydix.kernels.device.gluon_barrier import thread_barrier
from raydix.kernels.device.gpu import capability, num_sms

MAX_TOKENS = 32
_NARROW = 16
"""The number of columns on the narrow side of a tensor core's tile."""
_MIN_WEIGHTS = 4 << 20
"""The number of weights from which on this product was measured to be faster than cuBLAS."""
_MIN_OUTPUTS = 1024
"""The least number of outputs: of fewer, too many programs would meet in a row of tiles."""
_ALIGNMENT = 8
"""The elements, 16 bytes of bf16, of which a tensor map's rows must have a multiple."""
_CAPABILITY = (9, 0)
"""The compute capability of the devices with these tensor cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearShape:
    """How a product is divided. Its sums depend on `depth` and on the number of programs."""

    rows: int
    """The number of outputs of a tile."""
    depth: int
    """The number of inputs of a tile."""
    num_stages: int
    """The number of tiles that a program has in flight."""
    programs_per_sm: int


_SHAPE = LinearShape(rows=64, depth=256, num_stages=2, programs_per_sm=2)
"""The best shape, or nearly so, for all matrices tried and for a layer of them, by
`benchmarks.small_linear` (H200, 2026-11).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """The tiles of each program: from `program_steps` times its number on."""

    row_steps: int
    """The number of tiles side by side in a row of tiles, which are numbered one after another."""
    all_steps: int
    program_steps: int
    num_programs: int
    num_summands: int
    """The most programs that meet in a row of tiles."""


def divide(size: Sequence[int], shape: LinearShape, num_sms: int) -> Division:
    """Equal shares of weights of `size`, outputs and inputs."""
    outputs, inputs = size
    row_steps = triton.cdiv(inputs, shape.depth)
    all_steps = triton.cdiv(outputs, shape.rows) * row_steps
    program_steps = triton.cdiv(all_steps, num_sms * shape.programs_per_sm)

    # A row begins a multiple of this into the first program that it meets.
    apart = gcd(row_steps, program_steps)
    return Division(
        row_steps=row_steps,
        all_steps=all_steps,
        program_steps=program_steps,
        num_programs=triton.cdiv(all_steps, program_steps),
        num_summands=1 + triton.cdiv(row_steps - apart, program_steps),
    )


def has_tensor_cores(device: torch.device) -> bool:
    """Can `device` run this at all?"""
    return capability(device) == _CAPABILITY


def fits(x_TC: Tensor, weight_OC: Tensor) -> bool:
    """Is `small_linear` made for this product?"""
    return (
        x_TC.dtype == torch.bfloat16
        and x_TC.shape[0] <= MAX_TOKENS
        and weight_OC.numel() >= _MIN_WEIGHTS
        and weight_OC.shape[0] >= _MIN_OUTPUTS
        and weight_OC.shape[0] % _SHAPE.rows == 0
        and weight_OC.shape[1] % _ALIGNMENT == 0
    )


def small_linear(x_TC: Tensor, weight_OC: Tensor) -> Tensor:
    """The product of x and the transposed weights, [T, O]; sums in float32."""
    out = small_linear_summands(x_TC, weight_OC)
    return out if out.dim() == 2 else add_up(out, x_TC.dtype)


def small_linear_summands(x_TC: Tensor, weight_OC: Tensor) -> Tensor:
    """The product of x and the transposed weights: [T, O], or float32 summands of it, [S, T, O].

    bfloat16, at most MAX_TOKENS tokens, contiguous in C; C is a multiple of 8 and O of 64; rows
    of x are, too. Raises
    ValueError if a shape, dtype or stride differs.
    """
    if weight_OC.dtype != torch.bfloat16 or weight_OC.dim() != 2 or not weight_OC.is_contiguous():
        raise ValueError(
            f"Weights are {weight_OC.dtype} {tuple(weight_OC.shape)}; expected contiguous "
            f"bfloat16 [O, C]."
        )
    if (
        x_TC.dim() != 2
        or x_TC.shape[1] != weight_OC.shape[1]
        or x_TC.stride(1) != 1
        or x_TC.stride(0) % _ALIGNMENT
        or not fits(x_TC, weight_OC)
    ):
        raise ValueError(
            f"x is {x_TC.dtype} {tuple(x_TC.shape)}, the weights {tuple(weight_OC.shape)}; "
            f"expected bfloat16, at most {MAX_TOKENS} tokens, at least {_MIN_WEIGHTS} weights, "
            f"outputs in multiples of {_SHAPE.rows} from {_MIN_OUTPUTS} on, inputs of {_ALIGNMENT}."
        )
    if not x_TC.shape[0]:
        return x_TC.new_empty((0, weight_OC.shape[0]))
    return multiply(x_TC, weight_OC, _SHAPE)


def multiply(x_TC: Tensor, weight_OC: Tensor, shape: LinearShape) -> Tensor:
    """Multiply as `small_linear_summands` says, with a given shape."""
    num_tokens, outputs = x_TC.shape[0], weight_OC.shape[0]
    division = divide(weight_OC.shape, shape, num_sms(x_TC.device))
    if division.num_summands == 1:
        out = x_TC.new_empty((num_tokens, outputs))
    else:
        out = x_TC.new_empty((division.num_summands, num_tokens, outputs), dtype=torch.float32)

    tokens = max(_NARROW, triton.next_power_of_2(num_tokens))
    _multiply[(division.num_programs,)](
        _descriptor(x_TC, tokens, shape.depth),
        _descriptor(weight_OC, shape.rows, shape.depth),
        out,
        num_tokens,
        outputs,
        division.row_steps,
        division.all_steps,
        division.program_steps,
        ROWS=shape.rows,
        DEPTH=shape.depth,
        TOKENS=tokens,
        SUMMANDS=division.num_summands,
        STAGES=shape.num_stages,
        num_warps=4,
        **early_launch(x_TC.device),
    )
    return out


def _descriptor(tensor: Tensor, rows: int, depth: int) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout.get_default_for([rows, depth], gl.bfloat16)
    return TensorDescriptor.from_tensor(tensor, [rows, depth], layout)


@gluon.jit
def _ask_for_weights(
    weights,
    ring,
    ready,
    index,
    first,
    num_steps,
    row_steps,
    STEP_BYTES: gl.constexpr,
    STAGES: gl.constexpr,
):
    """Ask for the weights of a step, whose barrier then waits for its inputs, too."""
    ROWS: gl.constexpr = ring.shape[1]
    DEPTH: gl.constexpr = ring.shape[2]
    step = first + index
    place = [step // row_steps * ROWS, step % row_steps * DEPTH]
    barrier = ready.index(index % STAGES)
    is_step = index < num_steps

    mbarrier.expect(barrier, STEP_BYTES, pred=is_step)
    tma.async_copy_global_to_shared(
        weights, place, barrier, ring.index(index % STAGES), pred=is_step
    )


@gluon.jit
def _ask_for_inputs(inputs, ring, ready, index, first, num_steps, row_steps, STAGES: gl.constexpr):
    """Ask for the inputs of a step."""
    DEPTH: gl.constexpr = ring.shape[2]
    tma.async_copy_global_to_shared(
        inputs,
        [0, (first + index) % row_steps * DEPTH],
        ready.index(index % STAGES),
        ring.index(index % STAGES),
        pred=index < num_steps,
    )


@gluon.jit(do_not_specialize=["num_tokens", "row_steps", "all_steps", "program_steps"])
def _multiply(
    inputs,
    weights,
    out_ptr,
    num_tokens,
    outputs,
    row_steps,
    all_steps,
    program_steps,
    ROWS: gl.constexpr,
    DEPTH: gl.constexpr,
    TOKENS: gl.constexpr,
    SUMMANDS: gl.constexpr,
    STAGES: gl.constexpr,
    EARLY: gl.constexpr,
):
    """A step is a tile. Weights are the left operand: the tokens are the narrow side."""
    STEP_BYTES: gl.constexpr = (ROWS + TOKENS) * DEPTH * 2
    program = gl.program_id(0)
    first = program * program_steps
    num_steps = gl.minimum(program_steps, all_steps - first)
    weight_ring = gl.allocate_shared_memory(weights.dtype, [STAGES, ROWS, DEPTH], weights.layout)
    input_ring = gl.allocate_shared_memory(inputs.dtype, [STAGES, TOKENS, DEPTH], inputs.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
    fence_async_shared()

    for stage in gl.static_range(STAGES):
        _ask_for_weights(
            weights, weight_ring, ready, stage, first, num_steps, row_steps, STEP_BYTES, STAGES
        )
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    for stage in gl.static_range(STAGES):
        _ask_for_inputs(inputs, input_ring, ready, stage, first, num_steps, row_steps, STAGES)

    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, TOKENS, 16]
    )
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    token = gl.arange(0, TOKENS, layout=gl.SliceLayout(0, layout))
    is_token = (token < num_tokens)[None, :]
    size = num_tokens * outputs
    zeros = gl.zeros([ROWS, TOKENS], gl.float32, layout=layout)
    total = zeros
    for index in range(num_steps):
        current = index % STAGES
        mbarrier.wait(ready.index(current), index // STAGES & 1)
        total = warpgroup_mma(
            weight_ring.index(current), input_ring.index(current).permute((1, 0)), total
        )
        # Before a stage is filled again every warp has to have read it.
        thread_barrier()
        _ask_for_weights(
            weights,
            weight_ring,
            ready,
            index + STAGES,
            first,
            num_steps,
            row_steps,
            STEP_BYTES,
            STAGES,
        )
        _ask_for_inputs(
            inputs, input_ring, ready, index + STAGES, first, num_steps, row_steps, STAGES
        )

        step = first + index
        tile_row = step // row_steps
        is_row_done = step % row_steps == row_steps - 1
        if is_row_done | (index == num_steps - 1):
            summand = program - tile_row * row_steps // program_steps
            out_row_ptr = out_ptr + token[None, :] * outputs + (tile_row * ROWS + row)[:, None]
            store_summand(out_row_ptr, total, zeros, is_token, summand, size, is_row_done, SUMMANDS)
            total = zeros

    for stage in gl.static_range(STAGES):
        mbarrier.invalidate(ready.index(stage))
