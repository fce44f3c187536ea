"""How much is copied to L2 at once, and how much before it must be. Pure functions."""

from raydix.runtime.config.page_counts import pages_within

_MAX_PAGES_PER_COPY = 256
_MAX_BYTES_PER_COPY = 512 << 20
"""The most of each KV group in one copy to L2: some 10 ms of what carries it."""
_PAGES_PER_CLEAN_PAGE = 16
"""One page in so many is kept free, or clean (copied to L2), before pages are needed."""
_STEPS_AHEAD = 2
"""The number of steps that may take pages before a copy sent with the first of them is done."""
_PAGES_PER_STEP_PAGE = 4
"""Pages that `_STEPS_AHEAD` steps may take are kept free or clean, up to one page in so many."""
_PAGES_PER_TAKEN_PAGE = 2
"""The most pages ever taken between two looks ahead are kept free or clean, up to one page in so
many, since loads take whole prefixes. Pages to be evicted next are thus copied earlier than need
be, which is in vain only if they are used again.
"""


def pages_of_copy(page_bytes: int) -> int:
    """The most pages of so many bytes in one copy to L2."""
    return pages_within(_MAX_BYTES_PER_COPY, page_bytes, _MAX_PAGES_PER_COPY)


def low_water(num_pages: int, pages_per_step: int, most_taken: int) -> int:
    """How many of a pool's pages are kept free or clean.

    most_taken: the most pages ever taken between two looks ahead.
    """
    step_share = min(_STEPS_AHEAD * pages_per_step, num_pages // _PAGES_PER_STEP_PAGE)
    taken_share = min(most_taken, num_pages // _PAGES_PER_TAKEN_PAGE)
    return max(num_pages // _PAGES_PER_CLEAN_PAGE, step_share, taken_share, 1)
