# mypy: disable-error-code="no-untyped-def"
"""The search for a row's cut by the one program that each row has.

It collects the candidates, and narrows the interval of keys that holds the lowest kept one. Tokens
lie in lanes: lane i's are at i, i + LANES, i + 2 * LANES, ... That is so of a row itself, too,
which is why a search may go on in either.
"""

import triton
import triton.language as tl

from raydix.kernels.sampling.cut_logits import logits_of, weights_of

PIVOTS = tl.constexpr(16)
"""The number of keys that one pass compares each token with."""
LEAST_GOAL = tl.constexpr(1.2e-38)
"""The least weight that is searched for: below any that counts, above 0, which none reaches."""


@triton.jit
def narrow(
    source_ptr,
    counts,
    low,
    high,
    goal,
    here,
    above,
    least,
    ceiling,
    top_p,
    largest,
    temperature,
    IS_MASS: tl.constexpr,
    KEY_BITS: tl.constexpr,
    LANES: tl.constexpr,
):
    """The highest key in [low, high) from which on the sum reaches the goal; `low` if none does.

    Lane i's tokens are at source_ptr + i + n * LANES for n < counts[i]; those from `least` on and
    below `ceiling` are summed, and to that comes `above`. A goal below 0 stands for top_p of the
    sum from `low` on. Returns the key, the goal, the sum from the key on and the one beyond it.
    """
    lane = tl.arange(0, LANES)
    depth = tl.max(counts, 0)
    beyond = above
    while (high - low > 1) | (goal < 0.0):
        step = tl.maximum((high - low + PIVOTS - 1) // PIVOTS, 1)
        keys = tl.minimum(low + tl.arange(0, PIVOTS) * step, tl.maximum(high, low))
        pivots = logits_of(keys.to(tl.int32), KEY_BITS)
        sums = tl.zeros([PIVOTS, LANES], tl.float32)
        for first in range(0, depth, 2):
            for level in tl.static_range(2):
                place = (first + level) * LANES + lane
                logits = tl.load(
                    source_ptr + place, mask=place < counts * LANES, other=float("-inf")
                ).to(tl.float32)
                is_kept = (logits >= least) & (logits < ceiling)
                values = weights_of(logits, largest, temperature) if IS_MASS else 1.0
                values = tl.where(is_kept, values, 0.0)
                sums += tl.where(logits[None, :] >= pivots[:, None], values[None, :], 0.0)
        pivot = tl.arange(0, PIVOTS)
        found = tl.sum(sums, 1) + beyond

        first_sum = tl.sum(tl.where(pivot == 0, found, 0.0), 0)
        goal = tl.where(goal < 0.0, tl.maximum(top_p * first_sum, LEAST_GOAL), goal)
        chosen = tl.maximum(tl.sum((found >= goal).to(tl.int32), 0) - 1, 0)
        here = tl.sum(tl.where(pivot == chosen, found, 0.0), 0)
        next_sum = tl.sum(tl.where(pivot == chosen + 1, found, 0.0), 0)
        is_inner = (chosen + 1 < PIVOTS) & (low + (chosen + 1) * step < high)
        above = tl.where(is_inner, next_sum, above)
        high = tl.where(is_inner, low + (chosen + 1) * step, high)
        low = low + chosen * step
    return low, goal, here, above


@triton.jit
def _load_listed(
    row_ptr,
    groups_ptr,
    first,
    num_listed,
    vocab_size,
    GROUP: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Raw logits of the listed groups from the `first` on, WIDTH neighbours to a lane.

    Past the vocabulary they are -inf.
    """
    lane = tl.arange(0, LANES)
    place = first + lane // (GROUP // WIDTH)
    # Past the list, a group past the vocabulary.
    group = tl.load(
        groups_ptr + place, mask=place < num_listed, other=(vocab_size + GROUP - 1) // GROUP
    )
    token_ids = (group * GROUP + (lane % (GROUP // WIDTH)) * WIDTH)[:, None] + tl.arange(0, WIDTH)[
        None, :
    ]
    return tl.load(row_ptr + token_ids, mask=token_ids < vocab_size, other=float("-inf"))


@triton.jit
def collect(
    row_ptr,
    maxima_ptr,
    groups_ptr,
    found_ptr,
    least,
    ceiling,
    vocab_size,
    num_groups,
    max_depth,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Copy the logits in [least, ceiling) to `found_ptr`, each lane its own.

    Returns how many each lane met; one that meets more than `max_depth` copies no more than those.
    `least` is finite.
    """
    group = tl.arange(0, GROUPS)
    maxima = tl.load(maxima_ptr + group, mask=group < num_groups, other=float("-inf"))
    is_listed = (maxima >= least) & (maxima > float("-inf"))
    place = tl.cumsum(is_listed.to(tl.int32), 0) - 1
    tl.store(groups_ptr + place, group, mask=is_listed)
    num_listed = tl.sum(is_listed.to(tl.int32), 0)
    tl.debug_barrier()

    lane = tl.arange(0, LANES)
    counts = tl.zeros([LANES], tl.int32)
    # What comes next is being loaded while a tile is looked at.
    TILE: tl.constexpr = LANES * WIDTH // GROUP
    tile = _load_listed(row_ptr, groups_ptr, 0, num_listed, vocab_size, GROUP, LANES, WIDTH)
    following = _load_listed(row_ptr, groups_ptr, TILE, num_listed, vocab_size, GROUP, LANES, WIDTH)
    for first in range(0, num_listed, TILE):
        last = _load_listed(
            row_ptr, groups_ptr, first + 2 * TILE, num_listed, vocab_size, GROUP, LANES, WIDTH
        )
        raw = tile.to(tl.float32)
        is_found = (raw >= least) & (raw < ceiling)
        level = counts[:, None] + tl.cumsum(is_found.to(tl.int32), 1) - 1
        tl.store(
            found_ptr + level * LANES + lane[:, None], tile, mask=is_found & (level < max_depth)
        )
        counts += tl.sum(is_found.to(tl.int32), 1)
        tile = following
        following = last
    tl.debug_barrier()
    return counts
