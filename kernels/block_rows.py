# mypy: disable-error-code="no-untyped-def"
"""What the kernels of experts read of `ExpertBlocks`; pointers are None where columns are."""

import triton
import triton.language as tl


@triton.jit
def count_blocks(num_blocks_ptr, capacity):
    """Blocks in use: every slot is one, or the device knows."""
    num_blocks = capacity
    if num_blocks_ptr is not None:
        num_blocks = tl.load(num_blocks_ptr)
    return num_blocks


@triton.jit
def expert_of(block, experts_ptr, slots_ptr, num_experts, size: tl.constexpr):
    """A block's expert, and how long its sums are: a slot of its own may be nobody's."""
    expert = tl.load(experts_ptr + block).to(tl.int32)
    stop = size
    if slots_ptr is None:
        is_expert = (expert >= 0) & (expert < num_experts)
        expert = tl.where(is_expert, expert, 0)
        stop = tl.where(is_expert, size, 0)
    return expert, stop


@triton.jit
def first_row_of(block, starts_ptr):
    """Index of a block's first row."""
    first = block
    if starts_ptr is not None:
        first = tl.load(starts_ptr + block)
    return first


@triton.jit
def rows_of(block, starts_ptr, ends_ptr, slots_ptr, ROWS: tl.constexpr):
    """A block's rows, their slots, and which of them there are."""
    row = first_row_of(block, starts_ptr) + tl.arange(0, ROWS)
    if slots_ptr is None:
        is_row = row == block
        slot = tl.where(is_row, row, 0)
    else:
        is_row = row < tl.load(ends_ptr + block)
        slot = tl.load(slots_ptr + row, mask=is_row, other=0)
    return row, slot, is_row


@triton.jit
def place_of(tile, firsts_ptr, counts_ptr, tiles_per_block: tl.constexpr, TOGETHER: tl.constexpr):
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
