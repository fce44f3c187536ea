# mypy: disable-error-code="no-untyped-def"
"""Token permutation for experts: a stable counting sort of (token, choice) pairs by expert.

The sorted pairs are cut into blocks of rows. Nothing depends on the data but the values: shapes and
grids follow from the number of pairs, so a launch can be captured in a CUDA graph. Every program
counts all pairs, or sums the counts of all programs, for itself, so that none waits for another.

Legend: T tokens, K experts per token, X = T x K pairs (pair t x K + k), E experts, B blocks.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_EXPERTS = 1024
_CHUNK = 64
"""The number of pairs that a program compares with each other at a time."""
_SMALL_PAIRS = 1024
"""The pairs up to which every program counts them all; of more, chunks are counted first."""
_MAX_PROGRAMS = 256
_COUNT_ROWS = 32
"""The number of programs whose counts are read at a time."""
_ALIGNED = 4
"""The number of int32 in 16 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpertBlocks:
    """Pairs in order of their expert, in blocks of at most `block_rows`, each of one expert.

    All int32.
    """

    block_rows: int
    pairs_X: Tensor
    """The pairs whose expert is in 0..E-1, sorted by expert, then by pair."""
    num_blocks_1: Tensor
    """The number of blocks in use; entries past it in the columns `*_B` are undefined."""
    experts_B: Tensor
    starts_B: Tensor
    """The index in pairs_X of each block's first row."""
    ends_B: Tensor
    """The index in pairs_X just past each block's last row."""
    firsts_B: Tensor
    """The first block of the same expert, for each block."""
    counts_B: Tensor
    """The number of blocks of the same expert, which are consecutive, for each block."""


def max_blocks(num_pairs: int, num_experts: int, block_rows: int) -> int:
    """The most blocks that so many pairs can need: a single row may be in each expert's last."""
    touched = min(num_pairs, num_experts)
    return touched + (num_pairs - touched) // block_rows


def permute_by_expert(expert_ids_TK: Tensor, num_experts: int, block_rows: int) -> ExpertBlocks:
    """Sort the pairs of `expert_ids_TK` (int32 or int64, contiguous) by expert.

    Ids outside of 0..num_experts-1 are skipped. Raises ValueError if a shape, dtype or stride
    differs.
    """
    if expert_ids_TK.dtype not in (torch.int32, torch.int64) or not expert_ids_TK.is_contiguous():
        raise ValueError(
            f"Expert ids are {expert_ids_TK.dtype}; expected contiguous int32 or int64."
        )
    if expert_ids_TK.dim() != 2 or not 1 <= num_experts <= MAX_EXPERTS:
        raise ValueError(
            f"Expert ids are {tuple(expert_ids_TK.shape)} of {num_experts} experts; expected [T, "
            f"K] of at most {MAX_EXPERTS}."
        )
    if block_rows < 1 or block_rows & (block_rows - 1):
        raise ValueError(f"block_rows is {block_rows}; expected a power of two.")

    num_pairs = expert_ids_TK.numel()
    capacity = max_blocks(num_pairs, num_experts, block_rows)
    length = max(capacity, 1)
    # Each column begins at a multiple of 16 bytes: kernels are compiled for others apart.
    padded = triton.cdiv(length, _ALIGNED) * _ALIGNED
    columns = torch.empty((6, padded), dtype=torch.int32, device=expert_ids_TK.device)[:, :length]
    blocks = ExpertBlocks(
        block_rows=block_rows,
        pairs_X=torch.empty(num_pairs, dtype=torch.int32, device=expert_ids_TK.device),
        num_blocks_1=columns[5, :1],
        experts_B=columns[0],
        starts_B=columns[1],
        ends_B=columns[2],
        firsts_B=columns[3],
        counts_B=columns[4],
    )
    if num_pairs == 0:
        blocks.num_blocks_1.zero_()
        return blocks

    block_experts = triton.next_power_of_2(num_experts)
    chunks = triton.next_power_of_2(triton.cdiv(num_pairs, _CHUNK * _MAX_PROGRAMS))
    num_programs = triton.cdiv(num_pairs, _CHUNK * chunks)
    counts = None
    if num_pairs > _SMALL_PAIRS:
        counts = expert_ids_TK.new_empty((num_programs, block_experts), dtype=torch.int32)
        _count_pairs[(num_programs,)](
            expert_ids_TK,
            counts,
            num_pairs,
            num_experts,
            PAIRS=_CHUNK * chunks,
            BLOCK_EXPERTS=block_experts,
        )

    _place_pairs[(num_programs,)](
        expert_ids_TK,
        counts,
        blocks.pairs_X,
        blocks.num_blocks_1,
        blocks.experts_B,
        blocks.starts_B,
        blocks.ends_B,
        blocks.firsts_B,
        blocks.counts_B,
        num_pairs,
        num_experts,
        capacity,
        BLOCK_ROWS=block_rows,
        CHUNK=_CHUNK,
        CHUNKS=chunks,
        ALL_PAIRS=min(triton.next_power_of_2(num_pairs), _SMALL_PAIRS),
        COUNT_ROWS=_COUNT_ROWS,
        BLOCK_EXPERTS=block_experts,
        num_warps=4,
    )
    return blocks


@triton.jit
def _count_range(
    ids_ptr, first_pair, end_pair, num_experts, PAIRS: tl.constexpr, BLOCK_EXPERTS: tl.constexpr
):
    """How many of the pairs from `first_pair` to `end_pair`, PAIRS at most, each expert has."""
    pair = first_pair + tl.arange(0, PAIRS)
    expert = tl.load(ids_ptr + pair, mask=pair < end_pair, other=-1).to(tl.int32)
    is_expert = (expert >= 0) & (expert < num_experts)
    return tl.histogram(tl.where(is_expert, expert, 0), BLOCK_EXPERTS, mask=is_expert)


@triton.jit(do_not_specialize=["num_pairs"])
def _count_pairs(
    ids_ptr, counts_ptr, num_pairs, num_experts, PAIRS: tl.constexpr, BLOCK_EXPERTS: tl.constexpr
):
    """Counts of one program of `_place_pairs`."""
    program = tl.program_id(0)
    counts = _count_range(ids_ptr, program * PAIRS, num_pairs, num_experts, PAIRS, BLOCK_EXPERTS)
    tl.store(counts_ptr + program * BLOCK_EXPERTS + tl.arange(0, BLOCK_EXPERTS), counts)


@triton.jit(do_not_specialize=["num_pairs", "capacity"])
def _place_pairs(
    ids_ptr,
    counts_ptr,
    pairs_ptr,
    num_blocks_ptr,
    block_experts_ptr,
    block_starts_ptr,
    block_ends_ptr,
    block_firsts_ptr,
    block_counts_ptr,
    num_pairs,
    num_experts,
    capacity,
    BLOCK_ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    ALL_PAIRS: tl.constexpr,
    COUNT_ROWS: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,
):
    """Place CHUNKS chunks of pairs and describe a share of the blocks."""
    program = tl.program_id(0)
    num_programs = tl.num_programs(0)
    expert = tl.arange(0, BLOCK_EXPERTS)
    if counts_ptr is None:
        first_pair = program * CHUNKS * CHUNK
        total = _count_range(ids_ptr, 0, num_pairs, num_experts, ALL_PAIRS, BLOCK_EXPERTS)
        before = _count_range(
            ids_ptr, 0, tl.minimum(first_pair, num_pairs), num_experts, ALL_PAIRS, BLOCK_EXPERTS
        )
    else:
        all_counts = tl.zeros([COUNT_ROWS, BLOCK_EXPERTS], tl.int32)
        earlier_counts = tl.zeros([COUNT_ROWS, BLOCK_EXPERTS], tl.int32)
        for first in range(0, num_programs, COUNT_ROWS):
            other = first + tl.arange(0, COUNT_ROWS)
            row_ptr = counts_ptr + other[:, None] * BLOCK_EXPERTS + expert[None, :]
            counts = tl.load(row_ptr, mask=(other < num_programs)[:, None], other=0)
            all_counts += counts
            earlier_counts += tl.where((other < program)[:, None], counts, 0)
        total = tl.sum(all_counts, 0)
        before = tl.sum(earlier_counts, 0)
    row_end = tl.cumsum(total, 0)
    row_start = row_end - total
    num_expert_blocks = (total + BLOCK_ROWS - 1) // BLOCK_ROWS
    block_end = tl.cumsum(num_expert_blocks, 0)

    num_blocks = tl.sum(num_expert_blocks, 0)
    if program == 0:
        tl.store(num_blocks_ptr, num_blocks)
    for first in range(program * CHUNK, capacity, num_programs * CHUNK):
        block = first + tl.arange(0, CHUNK)
        is_block = block < num_blocks
        owner = tl.sum((block[:, None] >= block_end[None, :]).to(tl.int32), 1)
        owner = tl.where(is_block, owner, 0)
        first_block = tl.gather(block_end - num_expert_blocks, owner, 0)
        start = tl.gather(row_start, owner, 0) + (block - first_block) * BLOCK_ROWS
        tl.store(block_experts_ptr + block, owner, mask=is_block)
        tl.store(block_starts_ptr + block, start, mask=is_block)
        tl.store(
            block_ends_ptr + block,
            tl.minimum(start + BLOCK_ROWS, tl.gather(row_end, owner, 0)),
            mask=is_block,
        )
        tl.store(block_firsts_ptr + block, first_block, mask=is_block)
        tl.store(block_counts_ptr + block, tl.gather(num_expert_blocks, owner, 0), mask=is_block)

    before += row_start
    member = tl.arange(0, CHUNK)
    for chunk in range(CHUNKS):
        pair = (program * CHUNKS + chunk) * CHUNK + member
        chosen = tl.load(ids_ptr + pair, mask=pair < num_pairs, other=-1).to(tl.int32)
        is_chosen = (chosen >= 0) & (chosen < num_experts)
        is_earlier = (chosen[None, :] == chosen[:, None]) & (member[None, :] < member[:, None])
        rank = tl.sum(is_earlier.to(tl.int32), 1)
        position = tl.gather(before, tl.where(is_chosen, chosen, 0), 0) + rank
        tl.store(pairs_ptr + position, pair, mask=is_chosen)
        before += tl.histogram(tl.where(is_chosen, chosen, 0), BLOCK_EXPERTS, mask=is_chosen)
