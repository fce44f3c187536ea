"""How many pages the L1 pool of each KV group has. Pure functions.

FULL and LATENT pools are equally large, as a page of a chain takes one in each. The pool of a
WINDOW group holds windows: one for each request that runs, and some for prefixes to come back to.
A STATE group's holds states for the same, and as few as their weight says.
"""

import bisect
from collections.abc import Sequence

from raydix.errors import ConfigError
from raydix.runtime.config.checkpoint_distance import checkpoint_distance, most_states
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.kv_layout import GroupKind, KvLayout
from raydix.runtime.config.kv_shard import KvShard

_FEWEST_WINDOWS = 16
"""Requests, or all that may run, that have a window each as long as windows do not outweigh the
pages of the other groups.
"""
_SHARES_PER_STATE_SHARE = 2
"""States take one part of L1 and the other groups so many at least.

A state saves computing the tokens since the state before it. The keys and values of as many bytes
save computing `state_bytes // token_bytes` tokens, which is how far regular states are apart: where
both take equal parts, one more state saves no more than what it pushes out. Few of the places where
states are left are come back to, so their part is smaller.
"""
_MAX_PAGES = 2**31 - 2
"""Page ids are int32, and 0 is the padding page."""


def least_window_pages(layout: KvLayout, step_tokens: int) -> tuple[int, ...]:
    """Per KV group, pages without which a request that runs alone may never end; FULL: 0.

    While it loads the window before its end it may hold the one before its end in L1. While it
    computes it holds a window and `step_tokens` more, which need not begin or end with a page.
    """
    num_step = -(-step_tokens // layout.page_size)
    return tuple(
        [
            0 if reach is None else 2 * reach + pages_of_step(layout, group, num_step) + 2
            for group, reach in enumerate(layout.reaches)
        ]
    )


def pages_of_step(layout: KvLayout, group: int, num_pages: int) -> int:
    """The most pages of a group that a request takes for the next `num_pages` pages of its chain.

    Of a STATE group it takes few.
    """
    is_state = layout.groups[group].kind is GroupKind.STATE
    return most_states(layout, num_pages) if is_state else num_pages


def max_context_pages(
    layout: KvLayout, num_pages: Sequence[int], *, is_chunked: bool
) -> int | None:
    """The longest context, in pages, that pools of these sizes have room for; None: any.

    Where all layers have windows, that is any context whose prompt is computed in chunks.
    """
    bounds = [
        _max_step_pages(layout, group, pages)
        for group, (pages, reach) in enumerate(zip(num_pages, layout.reaches, strict=True))
        if reach is None or not is_chunked
    ]
    return min(bounds, default=None)


def _max_step_pages(layout: KvLayout, group: int, num_pages: int) -> int:
    """The most pages of a chain that one step may compute with a pool of this size."""
    if layout.groups[group].kind is not GroupKind.STATE:
        return num_pages

    def num_needed(num_step: int) -> int:
        return least_window_pages(layout, num_step * layout.page_size)[group]

    # A pool that has a page for each of a chain's is enough, as it is for other groups.
    distance = checkpoint_distance(layout)
    assert distance is not None, "there are states"
    longer = range(num_pages + 1, num_pages * distance + 1)
    return num_pages + bisect.bisect_right(longer, num_pages, key=num_needed)


def pool_pages(config: EngineConfig, layout: KvLayout, num_pages: int) -> tuple[int, ...]:
    """Pages of each group's pool if those of FULL groups have `num_pages`.

    Where all layers have windows, the widest group has so many. Raises ConfigError if these are too
    few for a single request.
    """
    scheduler = config.scheduler
    chunk_tokens = scheduler.chunked_prefill_tokens
    if chunk_tokens is None and not layout.has_states:
        # A whole prompt is computed in one step: every group holds all of it for a moment.
        return (num_pages,) * len(layout.groups)

    # Of a state, which is left after few pages, a prompt in one step takes few all the same.
    least = least_window_pages(layout, chunk_tokens or num_pages * layout.page_size)
    reaches = layout.reaches
    widest = max([reach or 0 for reach in reaches])
    if None in reaches:
        num_windows = _num_windows(config, layout, num_pages)
        wanted = [
            num_pages if reach is None else fewest + num * _moving_pages(reach)
            for fewest, reach, num in zip(least, reaches, num_windows, strict=True)
        ]
        return tuple([min(num_pages, pages) for pages in wanted])

    if num_pages < max(least):
        raise ConfigError(
            f"cache.l1 has room for {num_pages} pages; a model whose layers all look back over a "
            f"window needs at least {max(least)}. Raise cache.l1.num_pages or memory_fraction, or "
            f"lower scheduler.chunked_prefill_tokens."
        )
    shares = [((reach or 0) + 1) / (widest + 1) for reach in reaches]
    pairs = zip(least, shares, strict=True)
    return tuple([max(fewest, int(num_pages * share)) for fewest, share in pairs])


def _num_windows(config: EngineConfig, layout: KvLayout, num_pages: int) -> tuple[int, ...]:
    """Per KV group, windows or states that L1 has room for beside `num_pages` of FULL groups."""
    shard = KvShard(layout=layout)
    page_bytes = [shard.page_bytes(group) for group in range(len(layout.groups))]
    pairs = list(zip(page_bytes, layout.reaches, strict=True))
    full_bytes = num_pages * sum([size for size, reach in pairs if reach is None])
    some = num_pages * layout.page_size // config.cache.l1.tokens_per_window
    few = min(config.scheduler.max_running_requests, _FEWEST_WINDOWS)

    counts = []
    for group, (size, reach) in zip(layout.groups, pairs, strict=True):
        num_affordable = full_bytes // (size * _moving_pages(reach or 0))
        is_state = group.kind is GroupKind.STATE
        most = num_affordable // _SHARES_PER_STATE_SHARE if is_state else some
        counts.append(max(1, min(few, num_affordable), min(some, most)))
    return tuple(counts)


def _moving_pages(reach: int) -> int:
    """The pages of a window that moves on: it takes one that is begun, and one that is full."""
    return reach + 2


def largest_pools(
    config: EngineConfig, layout: KvLayout, page_bytes: Sequence[int], num_bytes: int
) -> int:
    """The most `num_pages` whose `pool_pages` take at most `num_bytes`, with a padding page each.

    0 if there is room for none.
    """

    def bytes_of(num_pages: int) -> int:
        pages = pool_pages(config, layout, num_pages)
        return sum((pages + 1) * size for pages, size in zip(pages, page_bytes, strict=True))

    # Without a FULL group fewer than the least have no sizes.
    fewest = 1
    if None not in layout.reaches and config.scheduler.chunked_prefill_tokens is not None:
        fewest = max(least_window_pages(layout, config.scheduler.chunked_prefill_tokens))
    most = min(_MAX_PAGES, max(fewest, num_bytes // min(page_bytes)))
    found = bisect.bisect_right(range(fewest, most + 1), num_bytes, key=bytes_of)
    return fewest + found - 1 if found else 0
