"""Which pages of WINDOW groups L2 and L3 keep: the windows before checkpoints. Pure functions.

    page                      0  1  2  3  4  5  6  7  8  9
    FULL group, kept          #  #  #  #  #  #  #  #  #  #
    WINDOW group, reach 2     .  .  #  #  .  .  .  .  #  #      checkpoints before pages 4 and 10
    a prefix may end                      ^                 ^

A prefix can be taken up again only where the window before its end is there. L2 and L3 keep windows
at few places: where a prompt ends and where its output does, where a prefix was taken up, where
prompts part, and at regular distances, so that long prefixes can be shared in part.
"""

from collections.abc import Collection

from raydix.runtime.config.kv_layout import KvLayout

_WINDOWS_PER_CHECKPOINT = 8
"""Regular checkpoints are this many windows apart at least: one window in eight is cheap."""


def checkpoint_distance(layout: KvLayout) -> int | None:
    """Pages from one regular checkpoint to the next; None if the layout has no WINDOW group.

    The heavier a token is in WINDOW groups, compared with the others, the fewer there are.
    """
    windows = [group for group in layout.groups if group.window is not None]
    if not windows:
        return None

    num_window = sum(group.token_elements for group in windows)
    num_other = sum(group.token_elements for group in layout.groups) - num_window
    widest = max(group.window or 0 for group in windows)
    num_tokens = _WINDOWS_PER_CHECKPOINT * widest
    if num_window > num_other > 0:
        num_tokens = -(-num_tokens * num_window // num_other)
    return -(-num_tokens // layout.page_size)


def checkpoints_between(
    start: int, stop: int, distance: int, others: Collection[int] = ()
) -> list[int]:
    """Checkpoints n with start < n <= stop, in pages: regular ones, and those of `others`."""
    regular = range((start // distance + 1) * distance, stop + 1, distance)
    return sorted({*regular, *(end for end in others if start < end <= stop)})


def window_before(end: int, reach: int) -> range:
    """The pages of a WINDOW group that hold the window before page `end`."""
    return range(max(0, end - reach), end)
