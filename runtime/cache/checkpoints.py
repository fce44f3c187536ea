"""Which windows and states are kept: those before checkpoints. Pure functions.

    page                      0  1  2  3  4  5  6  7  8  9
    FULL group, kept          #  #  #  #  #  #  #  #  #  #
    WINDOW group, reach 2     .  .  #  #  .  .  .  .  #  #      checkpoints before pages 4 and 10
    a prefix may end                      ^                 ^

A prefix can be taken up again only where the window before its end is there. L2 and L3 keep windows
at few places: where a prompt ends and where its output does, where a prefix was taken up, where
prompts part, and at regular distances, so that long prefixes can be shared in part. States are
heavier than windows, and no token need be computed to leave one out: L1 has them there alone, too,
and wherever a step ends, but for decodes.
"""

from collections.abc import Collection


def places_of_states(start: int, stop: int, distance: int, others: Collection[int]) -> list[int]:
    """The pages among [start, stop) in which a run that computes them leaves its state.

    They are those before checkpoints, and the last, from which the next step goes on. `others`: the
    places to return to, as `checkpoints_between` takes them.
    """
    ends = checkpoints_between(start, stop, distance, others)
    return [end - 1 for end in sorted({*ends, stop})]


def checkpoints_between(
    start: int, stop: int, distance: int, others: Collection[int] = ()
) -> list[int]:
    """Checkpoints n with start < n <= stop, in pages: regular ones, and those of `others`."""
    regular = range((start // distance + 1) * distance, stop + 1, distance)
    return sorted({*regular, *(end for end in others if start < end <= stop)})


def window_before(end: int, reach: int) -> range:
    """The pages of a WINDOW group that hold the window before page `end`."""
    return range(max(0, end - reach), end)
