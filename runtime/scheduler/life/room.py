"""Room in L1 for a waiting request: what it matches is locked, what it loads gets pages."""

from dataclasses import dataclass

import numpy as np

from raydix.runtime.cache.kv_match import first_needed
from raydix.runtime.cache.page_pools import PageIds
from raydix.runtime.cache.radix_tree import Lock
from raydix.runtime.scheduler.life.load_choice import Assessment
from raydix.runtime.scheduler.life.publishing import places_to_return
from raydix.runtime.scheduler.pages.page_needs import PageCounts, add_pages, pages_to_compute
from raydix.runtime.scheduler.ranks.lane import Lane
from raydix.runtime.scheduler.request.block_table import BlockTable
from raydix.runtime.scheduler.request.request import RequestState
from raydix.runtime.scheduler.request.run import Start
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.sources.cached_prefix import tiers_of


@dataclass(frozen=True, slots=True)
class Hold:
    """What a request matches in L1, locked, and how many pages there are to be beside it."""

    lock: Lock
    num_wanted: PageCounts


def hold(lane: Lane, request: RequestState, found: Assessment, now_s: float) -> Hold | None:
    """Lock what a request matches; None if it has no room, even once promotions give way."""
    # Only a match that is locked counts no more among the pages that can be evicted.
    lock = lane.l1.lock(found.prefix.match, found.num_locked_pages, now_s=now_s)
    num_wanted = _num_wanted_pages(lane, request, found)
    if _would_fit(lane, num_wanted):
        return Hold(lock, num_wanted)
    lane.l1.withdraw(lock)
    return None


def has_room(lane: Lane, request: RequestState, found: Assessment, now_s: float) -> bool:
    """Whether a request has room, as `hold` says; nothing stays locked."""
    held = hold(lane, request, found, now_s)
    if held is not None:
        lane.l1.withdraw(held.lock)
    return held is not None


def take_table(lane: Lane, held: Hold, found: Assessment, start: Start) -> BlockTable | None:
    """The pages that a request begins behind, those that it loads among them; None: no room.

    Promotions give way. Without room what is held goes back.
    """
    lane.give_way(held.num_wanted)
    load_pages = None
    if lane.l1.can_free(held.num_wanted):
        load_pages = lane.allocate(found.num_loaded)
    if load_pages is None:
        lane.l1.withdraw(held.lock)
        return None
    return _first_table(lane.settings, found, start, load_pages)


def start_of(settings: SchedulerSettings, request: RequestState, found: Assessment) -> Start:
    """Where a request takes up its chain."""
    prefix, num_pages = found.prefix, found.num_start_pages
    return Start(
        num_pages=num_pages,
        tiers=tiers_of(settings, num_pages, found.loads),
        loads=found.loads,
        num_left_pages=prefix.num_pages - num_pages,
        checkpoints=places_to_return(settings, request, prefix.num_known_pages),
    )


def _first_table(
    settings: SchedulerSettings, found: Assessment, start: Start, load_pages: PageIds
) -> BlockTable:
    """The first pages of a block table: in WINDOW groups those of the window alone."""
    columns = []
    needed = first_needed(settings.reaches, start.num_pages)
    for group, ids in enumerate(found.prefix.match.page_ids):
        column = np.zeros(start.num_pages, dtype=np.int32)
        locked = found.num_locked_pages
        column[:locked] = ids[:locked]
        column[np.asarray(start.loads[group], dtype=np.intp)] = load_pages[group]
        column[: needed[group]] = 0
        columns.append(column)
    return BlockTable(tuple(columns))


def _num_wanted_pages(lane: Lane, request: RequestState, found: Assessment) -> PageCounts:
    """Pages that a request, whose match is locked, and the running ones need for what is known."""
    # A request that runs alone may have all pages: it takes them as it gets to them.
    settings = lane.settings
    if not lane.running:
        return (0,) * settings.num_groups
    num_own = -(-(request.num_tokens + 1) // settings.page_size) - found.num_start_pages
    to_compute = pages_to_compute(settings, num_own)
    num_growth = (len(lane.running) + 1,) * settings.num_groups
    return add_pages(found.num_loaded, to_compute, num_growth, lane.prompt_pages_to_come())


def _would_fit(lane: Lane, num_pages: PageCounts) -> bool:
    """Whether there is room for so many pages once all promotions have given way."""
    if lane.l1.can_free(num_pages):
        return True
    pairs = zip(num_pages, lane.promotions.num_kept_pages(), strict=True)
    return lane.l1.can_free(tuple([max(0, num - num_kept) for num, num_kept in pairs]))
