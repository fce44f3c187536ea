# mypy: disable-error-code="no-untyped-def"
"""The sum of each token's outputs, which the ranks of its experts push back.

Legend: as in `token_buffers`.
"""

import triton
import triton.language as tl
from torch import Tensor

from raydix.kernels.dispatch.arrivals import POLLS, await_counts, await_pushes
from raydix.kernels.dispatch.token_buffers import Arrivals, TokenBuffers, TokenLayout

_SUM_WARPS = 8
_SUM_BLOCK = 2048
_MAX_SUM_PROGRAMS = 1056
"""The most programs of a sum, which is how many fit on an H200 at a time."""
_MAX_WAITING_PROGRAMS = 528
"""The most programs that each wait; of more, one waits for all, to leave SMs to others."""


def sum_outputs(
    out_NC: Tensor,
    ids_TK: Tensor,
    buffers: TokenBuffers,
    arrivals: Arrivals,
    layout: TokenLayout,
    first_row: int,
) -> Tensor:
    """Enqueue the wait for all ranks' outputs, and their sum in the order of ranks: [T, C].

    `out_NC`, `ids_TK`, `first_row`: what this rank has given to `push_outputs` and `push_tokens`.
    The sum is in float32, and rounded once.
    """
    num_tokens, hidden = ids_TK.shape[0], out_NC.shape[1]
    summed_TC = out_NC.new_empty((num_tokens, hidden))
    block = min(triton.next_power_of_2(hidden), _SUM_BLOCK)
    num_pieces = max(num_tokens * triton.cdiv(hidden, block), 1)
    waits = num_pieces <= _MAX_WAITING_PROGRAMS
    if not waits:
        await_pushes(buffers.outputs_arrived_R, arrivals, 0)

    _sum_outputs[(min(num_pieces, _MAX_SUM_PROGRAMS),)](
        out_NC,
        buffers.returned_XC,
        ids_TK,
        summed_TC,
        buffers.outputs_arrived_R,
        arrivals.awaited_1,
        arrivals.given_up_1,
        num_tokens,
        first_row,
        layout.max_tokens,
        layout.seats_per_rank,
        RANK=layout.rank,
        NUM_RANKS=layout.num_ranks,
        CHOICES=ids_TK.shape[1],
        BLOCK_CHOICES=triton.next_power_of_2(ids_TK.shape[1]),
        HIDDEN=hidden,
        BLOCK=block,
        WAITS=waits,
        POLLS=POLLS,
        num_warps=_SUM_WARPS,
    )
    return summed_TC


@triton.jit(do_not_specialize=["num_tokens", "first_row", "max_tokens", "seats"])
def _sum_outputs(
    out_ptr,
    returned_ptr,
    ids_ptr,
    summed_ptr,
    arrived_ptr,
    awaited_ptr,
    given_up_ptr,
    num_tokens,
    first_row,
    max_tokens,
    seats,
    RANK: tl.constexpr,
    NUM_RANKS: tl.constexpr,
    CHOICES: tl.constexpr,
    BLOCK_CHOICES: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    WAITS: tl.constexpr,
    POLLS: tl.constexpr,
):
    """A grid walks (token, block of columns)."""
    if WAITS:
        await_counts(arrived_ptr, tl.load(awaited_ptr), given_up_ptr, NUM_RANKS, POLLS)

    choice = tl.arange(0, BLOCK_CHOICES)
    blocks = tl.cdiv(HIDDEN, BLOCK)
    for work in range(tl.program_id(0), num_tokens * blocks, tl.num_programs(0)):
        token = (work // blocks).to(tl.int64)
        column = work % blocks * BLOCK + tl.arange(0, BLOCK)
        ids = tl.load(ids_ptr + token * CHOICES + choice, mask=choice < CHOICES, other=-1)

        summed = tl.zeros([BLOCK], tl.float32)
        for peer in tl.static_range(NUM_RANKS):
            seat = ids.to(tl.int32) - peer * seats
            is_wanted = tl.max(((seat >= 0) & (seat < seats)).to(tl.int32), 0) > 0
            if peer == RANK:
                row_ptr = out_ptr + (first_row + token) * HIDDEN
            else:
                place = peer - 1 if peer > RANK else peer
                row_ptr = returned_ptr + (place * max_tokens + token) * HIDDEN
            part = tl.load(
                row_ptr + column,
                mask=is_wanted & (column < HIDDEN),
                other=0.0,
                cache_modifier=".cg",
            )
            summed += part.to(tl.float32)
        tl.store(summed_ptr + token * HIDDEN + column, summed, mask=column < HIDDEN)
