"""Pages of L2 that were used together: they go one after the other."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raydix.errors import AccountingError
from raydix.ids import SEVERAL_USERS, UserId
from raydix.runtime.cache.host.lru_lists import Items
from raydix.runtime.cache.sorted_entries import OrderEntry
from raydix.runtime.cache.standing import Standing

_TURN_PAGES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where the pages of a new run come from."""

    group: int
    user: UserId | None
    reader: UserId | None
    created_s: float
    num_hits: int
    came_s: float
    """When the run was made of them."""
    kind: int = 0
    """What their last use has made of them, for `reuse` alone, as is the next one."""
    turn: int = 0
    """The number of requests before in their chain when the last of them came."""

    def begin(self, number: int, pages: list[int], standing: Standing) -> "PageRun":
        """Make a run of the pages, which has no place yet."""
        return PageRun(
            group=self.group,
            number=number,
            pages=array("i", pages),
            standing=standing,
            origin=self,
            created_s=self.created_s,
            num_hits=self.num_hits,
            user=self.user,
            reader=self.reader,
            num_live=len(pages),
        )


@lru_cache(maxsize=16)
def new_pages(
    group: int,
    user: UserId | None,
    created_s: float,
    came_s: float,
    *,
    kind: int = 0,
    turn: int = 0,
) -> Origin:
    """The origin of pages that come at a time, and count as if they had at another.

    Most come with others of their chain: to make it anew for each took a tenth of publishing it.
    """
    return Origin(
        group=group,
        user=user,
        reader=user,
        created_s=created_s,
        num_hits=0,
        came_s=came_s,
        kind=kind,
        turn=turn,
    )


@dataclass(slots=True, eq=False)
class PageRun:
    """Owns: pages of one KV group that were used together, and their place in the order."""

    group: int
    number: int
    pages: "array[int]"
    """The pages in the order in which they go; some may have left the run since."""
    standing: Standing
    origin: Origin
    created_s: float
    """When the pages came, or the last of what has come behind them."""
    num_hits: int
    user: UserId | None
    """The only user of the pages; None: nobody has used them since they came."""
    reader: UserId | None
    """Who used them last."""
    num_live: int
    start: int = 0
    """The first of `pages` that may not have left."""
    entry: "OrderEntry[PageRun] | None" = None
    priority: int = 0
    worth_s: float = 0.0
    """Nothing here: their order adds what `reuse` finds them worth."""
    is_spare: bool = False

    @property
    def kind(self) -> int:
        """What their last use has made of the pages."""
        return self.origin.kind

    @property
    def turn(self) -> int:
        """The number of requests before in their chain when the last of the pages came."""
        return self.origin.turn

    def is_free_for(self, user: UserId) -> bool:
        """Whether a user may make the pages its own."""
        return self.user is None or (self.user == user and user != SEVERAL_USERS)

    def add(self, page: int) -> None:
        """Add a page behind the others."""
        self.pages.append(page)
        self.num_live += 1

    def go_on(self, came_s: float) -> None:
        """Note that pages behind these came at this time: they count as if they came with them."""
        self.created_s = max(self.created_s, came_s)

    def pass_first(self) -> None:
        """Note that the first page has left."""
        self.start += 1

    def lose(self, num_pages: int) -> None:
        """Note that so many pages have left."""
        self.num_live -= num_pages

    def shorten(self, live: Sequence[int]) -> None:
        """Forget the pages that have left; `live` are the others."""
        self.pages, self.start = array("i", live), 0

    def place(self, standing: Standing, entry: "OrderEntry[PageRun]") -> None:
        """Note the run's standing, and with it its place in the order."""
        self.standing, self.entry = standing, entry


@dataclass(frozen=True, slots=True)
class HintedPages:
    """Pages of one KV group as they go, and what a user's hint has made of them."""

    group: int
    pages: Items
    user: UserId
    standing: Standing


def stretches(numbers: NDArray[Any]) -> list[tuple[int, int, int]]:
    """The equal numbers next to each other: each number with the places where it begins and ends.

    A chain's pages are in few runs, each a stretch: `np.unique` sorts them all, and takes several
    times as long for what has some dozens.
    """
    if not len(numbers):
        return []
    breaks = (numbers[1:] != numbers[:-1]).nonzero()[0]
    if not len(breaks):
        return [(int(numbers[0]), 0, len(numbers))]
    starts = [0, *(breaks + 1).tolist()]
    return list(zip(numbers[starts].tolist(), starts, [*starts[1:], len(numbers)], strict=True))


def walk_in_turns(
    run_of: "array[int]", of_groups: Sequence[list[tuple[int, "array[int]"]]]
) -> Iterator[int]:
    """The pages of the groups' runs that were in them as the column says, the last first.

    The groups take turns, some pages of each at a time.
    """
    walks = [_walk(run_of, runs) for runs in of_groups]
    while walks:
        for walk in list(walks):
            turn = [page for _, page in zip(range(_TURN_PAGES), walk, strict=False)]
            yield from turn
            if len(turn) < _TURN_PAGES:
                walks.remove(walk)


def _walk(run_of: "array[int]", runs: list[tuple[int, "array[int]"]]) -> Iterator[int]:
    """The pages of runs, the last first, that were in them as the column says."""
    for number, pages in reversed(runs):
        for page in reversed(pages):
            if run_of[page] == number:
                yield page


def live_pages(runs: Sequence[PageRun], run_of: NDArray[Any]) -> tuple[Items, Items]:
    """The pages that are in these runs as the column says, and at which place each one's run is."""
    named = array("i")
    for run in runs:
        named += run.pages[run.start :]
    pages = np.array(named, dtype=np.int64)
    lengths = [len(run.pages) - run.start for run in runs]
    places = np.repeat(np.arange(len(runs)), lengths)
    numbers = np.array([run.number for run in runs], dtype=np.int64)
    is_live = run_of[pages] == numbers[places]
    return pages[is_live], places[is_live]


def check_group(group: int, runs: Sequence[PageRun], run_of: NDArray[Any], num_counted: int) -> int:
    """How many pages a group's runs have.

    Raises AccountingError unless each of them and all together have as many as are counted.
    """
    pages, places = live_pages(runs, run_of)
    if len(pages) != num_counted:
        raise AccountingError(
            f"group {group}: {num_counted} pages counted in runs that have {len(pages)}"
        )

    # A page is in one run at most, so one that is named twice is so within its run.
    found = np.bincount(places, minlength=len(runs)).tolist()
    is_distinct = len(np.unique(pages)) == len(pages)
    for run, num_live in zip(runs, found, strict=True):
        if not 0 < num_live == run.num_live or run.group != group or not is_distinct:
            raise AccountingError(
                f"run {run.number} has {num_live} pages, or some of its group twice; "
                f"{run.num_live} are counted"
            )
    return len(pages)
