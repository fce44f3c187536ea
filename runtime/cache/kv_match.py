"""How much of a prompt its cached pages cover, over all KV groups, and in which tiers they are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from raydix.runtime.config.kv_layout import KvGroup
from raydix.runtime.messages.host import PageSource

Availability = bytes
"""One `PageSource` per page of the prompt: L1, L2 or L3 if it can be had, another if not."""
_PAGE, _GAP = b"\x00", b"\x01"
_PAGES_AND_GAPS = bytes(source > PageSource.L3 for source in range(256))
"""The table that turns each available page into `_PAGE`, and each other one into `_GAP`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvMatch:
    """A usable prefix of `num_pages` pages.

    Group g takes pages [starts[g], num_pages) from `sources[g]`, in order.
    """

    num_pages: int
    starts: tuple[int, ...]
    """The first page that each KV group needs: 0, or where the window before the end begins."""
    sources: tuple[Availability, ...]
    """Per KV group g, the source (L1, L2 or L3) of each of the `num_pages - starts[g]` pages."""


def match_groups(
    groups: Sequence[KvGroup], availability: Sequence[Availability], *, page_size: int
) -> KvMatch:
    """The longest prefix from which a request can be taken up.

    It may end at page n only if every FULL and LATENT page of [0, n) is available, and every WINDOW
    page of the last `window_pages`. Raises ValueError if the maps differ in length or number.
    """
    num_pages = len(availability[0]) if availability else 0
    if len(groups) != len(availability) or not groups or set(map(len, availability)) != {num_pages}:
        raise ValueError(
            f"{len(groups)} groups have maps of lengths {[len(pages) for pages in availability]}"
        )

    reaches = [group.reach(page_size) for group in groups]
    gaps = [pages.translate(_PAGES_AND_GAPS) for pages in availability]
    num_pages = longest_prefix(reaches, gaps, num_pages)

    starts = first_needed(reaches, num_pages)
    sources = tuple([pages[s:num_pages] for pages, s in zip(availability, starts, strict=True)])
    return KvMatch(num_pages=num_pages, starts=starts, sources=sources)


def first_needed(reaches: Sequence[int | None], num_pages: int) -> tuple[int, ...]:
    """Per group, the first page that a request needs if it is taken up after `num_pages`.

    `reaches`: see `KvLayout.reaches`.
    """
    return tuple([0 if reach is None else max(0, num_pages - reach) for reach in reaches])


def longest_prefix(reaches: Sequence[int | None], gaps: Sequence[bytes], max_pages: int) -> int:
    """The last end up to `max_pages` at which every group has what it needs.

    `reaches`: see `KvLayout.reaches`. `gaps`: per group a 0 for each page that it has, else a 1.
    """
    num_pages = max_pages
    windows: list[tuple[bytes, int]] = []
    for group_gaps, reach in zip(gaps, reaches, strict=True):
        if reach is not None:
            windows.append((group_gaps, reach))
        else:
            gap = group_gaps.find(_GAP, 0, num_pages)
            num_pages = num_pages if gap < 0 else gap

    # One window may shorten the prefix to an end that another one does not suit, so all are asked
    # again until none shortens it. FULL and LATENT groups suit any shorter prefix.
    earlier = None
    while windows and num_pages != earlier:
        earlier = num_pages
        for group_gaps, window in windows:
            num_pages = _longest_windowed(group_gaps, window, num_pages)
    return num_pages


def last_window_end(has_page: Callable[[int], bool], reach: int, max_pages: int) -> int:
    """The last end up to `max_pages` before which a WINDOW group has the pages that it needs.

    Asks about as few pages as it can: in a long chain that has no window, one in `reach`.
    """
    end = max_pages
    # A gap rules out all ends whose windows it is in, so go on before the first gap of this window.
    while (
        gap := next((page for page in range(max(0, end - reach), end) if not has_page(page)), None)
    ) is not None:
        end = gap
    return end


def _longest_windowed(gaps: bytes, num_needed: int, max_pages: int) -> int:
    """The last n up to `max_pages` before which `num_needed` pages, or all n, have no gap.

    `gaps` holds `_PAGE` and `_GAP`.
    """
    if num_needed < max_pages:
        start = gaps.rfind(_PAGE * num_needed, 0, max_pages)
        if start >= 0:
            return start + num_needed
    gap = gaps.find(_GAP, 0, max_pages)
    return max_pages if gap < 0 else gap
