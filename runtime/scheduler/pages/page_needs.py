"""How many L1 pages of each KV group requests need at once. Pure functions.

A page of a chain takes one page in every group. To a WINDOW group a request gives pages back as it
goes on, so it never needs more than a window and what its steps in flight compute.
"""

from collections.abc import Collection, Sequence

from raydix.runtime.cache.checkpoints import places_of_states
from raydix.runtime.config.kv_layout import GroupKind
from raydix.runtime.config.pool_sizes import pages_of_step
from raydix.runtime.scheduler.settings import SchedulerSettings

PageCounts = tuple[int, ...]
"""The number of pages of each KV group."""


def places_to_take(
    settings: SchedulerSettings, start: int, stop: int, checkpoints: Collection[int]
) -> tuple[Sequence[int], ...]:
    """Per KV group, which of the pages [start, stop) of a chain take one before they are computed.

    That is all of them, but of STATE groups those after which the state is kept. `checkpoints`: the
    places to return to.
    """
    if not settings.has_states:
        return (range(start, stop),) * settings.num_groups
    distance = settings.checkpoint_distance
    assert distance is not None, "there are states"
    states = places_of_states(start, stop, distance, checkpoints)
    return tuple(
        [
            states if group.kind is GroupKind.STATE else range(start, stop)
            for group in settings.layout.groups
        ]
    )


def pages_to_compute(settings: SchedulerSettings, num_pages: int) -> PageCounts:
    """The most that a request needs at once while it computes `num_pages` pages of a chain."""
    return tuple([num_pages if most is None else min(num_pages, most) for most in _most(settings)])


def total_pages_to_compute(
    settings: SchedulerSettings, needs: Sequence[int], num_others: int
) -> PageCounts:
    """The most pages that several requests need at once, which compute `needs` pages each, and
    further ones which compute `num_others` pages together.
    """
    total = sum(needs) + num_others
    return tuple(
        [
            total if most is None else sum([min(need, most) for need in needs]) + num_others
            for most in _most(settings)
        ]
    )


def add_pages(*counts: Sequence[int]) -> PageCounts:
    """The sum of these page counts, KV group by KV group."""
    return tuple(map(sum, zip(*counts, strict=True)))


def _most(settings: SchedulerSettings) -> list[int | None]:
    """Per KV group, the most pages that one request needs at once: a window, the pages of a step,
    and one that is begun. None: no bound.
    """
    num_step = -(-settings.max_step_tokens // settings.page_size)
    return [
        None if reach is None else reach + pages_of_step(settings.layout, group, num_step) + 1
        for group, reach in enumerate(settings.reaches)
    ]
