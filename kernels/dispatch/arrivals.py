# mypy: disable-error-code="no-untyped-def"
"""Counts by which a rank knows that what others push has arrived.

The programs of a push count themselves at the receiver, once what they wrote can be seen there:
together they add the same however many they are, so that nobody needs to know. The counts only ever
grow, so that launches may be captured in CUDA graphs and mixed with others in any order.

Legend: as in `token_buffers`.
"""

import triton
import triton.language as tl
from torch import Tensor

from raydix.kernels.dispatch.token_buffers import Arrivals, TokenBuffers

WHOLE_PUSH = 128
"""The sum that the programs of one push add to a count, and the most programs of a push."""
POLLS = 64
"""The looks at device memory per look at the host's, which takes as long as many of them."""


def await_tokens(buffers: TokenBuffers, arrivals: Arrivals) -> None:
    """Enqueue the wait for all ranks' tokens; what comes after on the stream sees them."""
    await_pushes(buffers.tokens_arrived_R, arrivals, WHOLE_PUSH)


def await_pushes(arrived_R: Tensor, arrivals: Arrivals, expected: int) -> None:
    """Enqueue the wait until all ranks' counts are `expected` beyond what was awaited so far."""
    _await_arrivals[(1,)](
        arrived_R,
        arrivals.awaited_1,
        arrivals.given_up_1,
        expected,
        NUM_RANKS=len(arrived_R),
        POLLS=POLLS,
        num_warps=1,
    )


@triton.jit
def signal(peer_arrived, WHOLE: tl.constexpr, RANK: tl.constexpr, NUM_RANKS: tl.constexpr):
    """Count this program at all ranks, which then see what all of its threads have written."""
    share = WHOLE // tl.num_programs(0)
    tl.debug_barrier()
    for peer in tl.static_range(NUM_RANKS):
        tl.atomic_add(peer_arrived[peer] + RANK, share, sem="release", scope="sys")


@triton.jit
def await_counts(arrived_ptr, awaited, given_up_ptr, NUM_RANKS: tl.constexpr, POLLS: tl.constexpr):
    """Wait for counts, by differences in int32, so that they may wrap around."""
    for peer in tl.static_range(NUM_RANKS):
        seen = tl.atomic_add(arrived_ptr + peer, 0, sem="acquire", scope="sys")
        polls = 0
        given_up = 0
        while (seen - awaited < 0) & (given_up == 0):
            seen = tl.atomic_add(arrived_ptr + peer, 0, sem="acquire", scope="sys")
            polls += 1
            if polls % POLLS == 0:
                given_up = tl.load(given_up_ptr, volatile=True)


@triton.jit(do_not_specialize=["expected"])
def _await_arrivals(
    arrived_ptr,
    awaited_ptr,
    given_up_ptr,
    expected,
    NUM_RANKS: tl.constexpr,
    POLLS: tl.constexpr,
):
    """One warp. `expected`: of each rank, beyond what has been awaited so far."""
    awaited = tl.load(awaited_ptr) + expected
    tl.store(awaited_ptr, awaited)
    await_counts(arrived_ptr, awaited, given_up_ptr, NUM_RANKS, POLLS)
