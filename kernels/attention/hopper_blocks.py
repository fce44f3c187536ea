# mypy: disable-error-code="no-untyped-def"
"""Blocks of paged keys and values on Hopper: brought by tensor maps, weighed by softmax in bf16.

Matrix units multiply 16 bits by 16, so what is stored in FP8 is unpacked to float16 on its way to
them, within the multiprocessor: float16 has all numbers of FP8, and the conversion is one
instruction for two of them, unlike that to bf16.

What `prefill_hopper` and `decode_hopper` have in common.

Legend: P pages, L layers of the KV group, H KV heads, S tokens per page, D head dim.
"""

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from raydix.kernels.attention.form import AttentionForm
from raydix.kernels.device.gluon_barrier import thread_barrier
from raydix.kernels.device.gpu import capability
from raydix.kernels.kv_cache.fp8 import FP8

NUM_WARPS = 4
"""The number of warps of a warp group, which multiply together."""
DIM = gl.constexpr(128)
SHARED = gl.constexpr(gl.NVMMASharedLayout(128, 16, 2))
"""The layout of a block in shared memory, where its two halves lie one after the other."""
BARRIER = gl.constexpr(mbarrier.MBarrierLayout())
COPY = gl.constexpr(gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0]))
COPY_ROWS = gl.constexpr(gl.SliceLayout(1, COPY.value))
COPY_DIMS = gl.constexpr(gl.SliceLayout(0, COPY.value))
_FP8_SHARED = gl.constexpr(gl.NVMMASharedLayout(128, 8, 2))
_SWIZZLE_BYTES = 128
"""What a tensor map loads of a row at once."""
_SOME_KEYS = gl.constexpr(32)
_MIN_BOX_ROWS = 8
"""The number of rows of a swizzle."""
_MAX_BOX_ROWS = 2**31 - 1
"""The most rows that a tensor map can address, as its coordinates are int32."""
_CAPABILITY = (9, 0)


def fits(q_TQD: Tensor, pool_PLH2SD: Tensor, form: AttentionForm) -> bool:
    """Do the kernels know such keys and such a form, and the device their instructions?"""
    page_size, head_dim = pool_PLH2SD.shape[4:]
    return (
        q_TQD.dtype == torch.bfloat16
        and pool_PLH2SD.dtype in (torch.bfloat16, FP8)
        and head_dim == DIM.value
        and page_size >= _MIN_BOX_ROWS
        and form.window is None
        and form.soft_cap is None
        and form.sinks_Q is None
        and pool_PLH2SD.numel() // head_dim <= _MAX_BOX_ROWS
        and capability(pool_PLH2SD.device) == _CAPABILITY
    )


def key_boxes(pool_PLH2SD: Tensor, block_keys: int) -> TensorDescriptor:
    """A tensor map of the pool's rows of D: a box is 128 bytes of rows of a page or a block."""
    page_size, head_dim = pool_PLH2SD.shape[4:]
    rows = pool_PLH2SD.view(-1, head_dim)
    box = [min(page_size, block_keys), _SWIZZLE_BYTES // rows.element_size()]
    layout = _FP8_SHARED if rows.dtype == FP8 else SHARED
    return TensorDescriptor.from_tensor(rows, box, layout.value)


@gluon.jit
def find_rows(
    boxes, table_ptr, begin, last_page, page_rows, KEYS: gl.constexpr, PAGE: gl.constexpr
):
    """The rows of the pool where the boxes of a block of keys begin, if `first_row` is added.

    Past the last page they are those of that page.
    """
    BOX: gl.constexpr = boxes.block_shape[0]
    rows = ()
    for piece in gl.static_range(KEYS // BOX):
        key = begin + piece * BOX
        page = gl.load(table_ptr + gl.minimum(key // PAGE, last_page))
        rows = rows + (page * page_rows + key % PAGE,)  # type: ignore[assignment]
    return rows


@gluon.jit
def ask_for_rows(boxes, rows, first_row, place, ready, is_wanted):
    """Ask for a block of keys, or of values, if it is wanted."""
    KEYS: gl.constexpr = place.shape[0]
    BOX: gl.constexpr = boxes.block_shape[0]
    WIDTH: gl.constexpr = boxes.block_shape[1]
    PIECES: gl.constexpr = KEYS // BOX
    COLUMNS: gl.constexpr = DIM // WIDTH
    pieces = place._reinterpret(boxes.dtype, [COLUMNS * PIECES, BOX, WIDTH], boxes.layout)
    size: gl.constexpr = KEYS * DIM * boxes.dtype.primitive_bitwidth // 8
    mbarrier.expect(ready, size, pred=is_wanted)
    for piece in gl.static_range(PIECES):
        for column in gl.static_range(COLUMNS):
            tma.async_copy_global_to_shared(
                boxes,
                [first_row + rows[piece], column * WIDTH],
                ready,
                pieces.index(column * PIECES + piece),
                pred=is_wanted,
            )


@gluon.jit
def ask_for_block(
    boxes, table_ptr, begin, last_page, page_rows, first_row, place, ready, PAGE: gl.constexpr
):
    """Ask for a block of keys, or of values; past the last page, that page is loaded again."""
    KEYS: gl.constexpr = place.shape[0]
    BOX: gl.constexpr = boxes.block_shape[0]
    WIDTH: gl.constexpr = boxes.block_shape[1]
    PIECES: gl.constexpr = KEYS // BOX
    COLUMNS: gl.constexpr = DIM // WIDTH
    pieces = place._reinterpret(boxes.dtype, [COLUMNS * PIECES, BOX, WIDTH], boxes.layout)
    mbarrier.expect(ready, KEYS * DIM * boxes.dtype.primitive_bitwidth // 8)
    for piece in gl.static_range(PIECES):
        key = begin + piece * BOX
        page = gl.load(table_ptr + gl.minimum(key // PAGE, last_page))
        row = page * page_rows + first_row + key % PAGE
        for column in gl.static_range(COLUMNS):
            tma.async_copy_global_to_shared(
                boxes, [row, column * WIDTH], ready, pieces.index(column * PIECES + piece)
            )


@gluon.jit
def blocks_of(context, count, KEYS: gl.constexpr):
    """Blocks of keys that a tile sees; without tokens or context it sees none."""
    return gl.where(count > 0, (context + (KEYS - 1)) // KEYS, 0)


@gluon.jit
def weigh(
    scores,
    begin,
    first_position,
    maximum,
    total,
    scale_log2,
    GROUP: gl.constexpr,
    OPERAND: gl.constexpr,
):
    """One step of the online softmax: weights, the decay of what was summed, and the new state.

    GROUP: query rows of one position. OPERAND: the dtype of weights.
    """
    ROWS: gl.constexpr = scores.shape[0]
    KEYS: gl.constexpr = scores.shape[1]
    LAYOUT: gl.constexpr = scores.type.layout
    if begin + KEYS > first_position + 1:
        key = begin + gl.arange(0, KEYS, layout=gl.SliceLayout(0, LAYOUT))
        row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))
        is_visible = gl.expand_dims(key, 0) <= gl.expand_dims(first_position + row // GROUP, 1)
        scores = gl.where(is_visible, scores, float("-inf"))
    new_maximum = gl.maximum(maximum, gl.max(scores, 1) * scale_log2)
    weights = gl.exp2(scores * scale_log2 - gl.expand_dims(new_maximum, 1))
    decay = gl.exp2(maximum - new_maximum)
    total = total * decay + gl.sum(weights, 1)
    operand = gl.convert_layout(weights.to(OPERAND), gl.DotOperandLayout(0, LAYOUT, 2))
    return operand, decay, new_maximum, total


@gluon.jit
def head_scales(scales_ptr, head, num_heads, scale_log2):
    """What scores and sums of values of a KV head are multiplied by."""
    v_scale = 1.0
    if scales_ptr is not None:
        scale_log2 *= gl.load(scales_ptr + head)
        v_scale = gl.load(scales_ptr + num_heads + head)
    return scale_log2, v_scale


@gluon.jit
def silence(values, begin, context):
    """Set values behind the context to zero, as a weight of zero would not silence NaN."""
    for part in gl.static_range(values.shape[0] // _SOME_KEYS):
        some = values.slice(part * _SOME_KEYS, _SOME_KEYS)
        key = begin + part * _SOME_KEYS + gl.arange(0, _SOME_KEYS, layout=COPY_ROWS)
        value = some.load(COPY)
        some.store(gl.where(gl.expand_dims(key < context, 1), value, gl.zeros_like(value)))
    fence_async_shared()
    thread_barrier()


@gluon.jit
def unpack(stored, place):
    """Write a block that is stored in FP8 to `place`, as float16, where matrix units read it."""
    for part in gl.static_range(stored.shape[0] // _SOME_KEYS):
        some = stored.slice(part * _SOME_KEYS, _SOME_KEYS).load(COPY)
        place.slice(part * _SOME_KEYS, _SOME_KEYS).store(some.to(place.dtype))
    fence_async_shared()
    thread_barrier()
