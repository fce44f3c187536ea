"""What L2 learns of reuse: of which kind a request's use makes the pages of a chain."""

from collections.abc import Sequence
from dataclasses import dataclass

from raydix.ids import SEVERAL_USERS, PageKey
from raydix.runtime.cache.host.page_run import PageRun
from raydix.runtime.cache.reuse_chances import NUM_TURNS, ReuseChances, kind_of

_SHARED = -1
"""The class of what several have used."""


@dataclass(frozen=True, slots=True)
class ChainUse:
    """A request's chain as L2 has it, in one KV group."""

    parts: Sequence[tuple[PageRun, int]]
    """The runs of its pages that nobody reads, heads first, each with the number of them."""
    last_turn: int
    """The last turn in which pages of it came; -1: none is there."""
    lacking: PageKey | None
    """The first page that is not there; None: all are."""
    num_pages: int


def kind_of_used(kind: int) -> int:
    """The kind of pages of a chain that were there before, beside that of its new ones."""
    return kind | 1


class PageReuse:
    """Owns: what L2 learns under the policy `reuse`."""

    def __init__(self) -> None:
        self._chances = ReuseChances()
        self._most_s = 0.0

    def begin_request(self, now_s: float) -> bool:
        """Note that a request's chain is looked up; returns whether worths may be others now."""
        if not self._chances.begin_request(now_s):
            return False
        self._most_s = self._chances.most_s
        return True

    def use(self, chain: ChainUse) -> tuple[int, int]:
        """Note that a request uses a chain.

        Returns of which kind its pages are that are new, and how many requests there were before.
        """
        for run, num_pages in chain.parts:
            self._chances.used_again(run.kind, run.origin.came_s, num_pages)
        turn = min(chain.last_turn + 1, NUM_TURNS - 1)
        if chain.lacking is not None:
            former = self._chances.come_back(chain.lacking)
            turn = turn if former is None else min(max(turn, former + 1), NUM_TURNS - 1)

        return kind_of(turn, chain.num_pages, num_hits=0), turn

    def class_of(self, run: PageRun) -> int:
        """The class of a run: those of one are always worth the same."""
        return _SHARED if run.user == SEVERAL_USERS else run.kind

    def worth_s(self, run: PageRun) -> float:
        """How long after their last use the pages of a run are worth keeping now.

        Nothing may be worth more than what it goes on from, which it is of no use without: new
        pages are not worth more than old ones of their chain, nor any than what several have used.
        """
        if run.user == SEVERAL_USERS:
            return self._most_s
        worth_s = self._chances.worth_s
        return min(worth_s(run.kind), worth_s(kind_of_used(run.kind)))

    def made_way(self, run: PageRun, keys: Sequence[PageKey]) -> None:
        """Note that pages of a run are to make way for others, in this order."""
        for _ in keys:
            self._chances.dropped(run.kind, run.origin.came_s, 1)
        if run.num_live == len(keys):
            # The last of a run to go is the first of its chain.
            self._chances.gone(keys[-1], run.kind, run.origin.came_s, len(run.pages))

    def check(self) -> None:
        """Raise AccountingError unless all that was learnt is possible."""
        self._chances.check()
