"""The order in which the pages of L2 go that nobody reads: runs of pages, as a policy says."""

import math
from array import array
from collections.abc import Iterator

import numpy as np

from raydix.errors import AccountingError
from raydix.ids import SEVERAL_USERS, UserId
from raydix.runtime.cache.eviction_policies import PolicyKey
from raydix.runtime.cache.host.coming_pages import Coming
from raydix.runtime.cache.host.lru_lists import Items, view_of
from raydix.runtime.cache.host.page_reuse import PageReuse
from raydix.runtime.cache.host.page_run import (
    HintedPages,
    Origin,
    PageRun,
    check_group,
    live_pages,
    new_pages,
    stretches,
    walk_in_turns,
)
from raydix.runtime.cache.host.read_pages import ReadPages
from raydix.runtime.cache.host.run_order import RunOrder
from raydix.runtime.cache.host.run_users import EndedUsers, RunUsers
from raydix.runtime.cache.standing import (
    HINTED,
    Idle,
    InUse,
    Kept,
    Over,
    Standing,
    of_own_pages,
    of_shared_pages,
)

_NOWHERE = -1
_MAX_NEWCOMERS = 1024
"""The most pages that come into one run one by one: to leave some out takes as long as it is."""


class PageRuns:
    """Owns: the READY pages without readers, in runs, and the order in which the runs go.

    Where a page is in its run tells when it goes before others that were used with it: the last of
    a chain first. To mark a chain as used, or to hear what comes next of its user, costs some us a
    run and some ns a page. A page that leaves its run stays in the run's array until more have left
    it than not.
    """

    def __init__(
        self,
        num_pages: int,
        num_groups: int,
        policy_key: PolicyKey,
        reuse: PageReuse | None = None,
    ) -> None:
        """`reuse`: what is learnt for that policy; None under others."""
        self._run_of = array("i", [_NOWHERE]) * num_pages
        """The number of each page's run."""
        self._all_run_of = view_of(self._run_of, np.intc)
        self._read = ReadPages(num_pages)
        self._ended = EndedUsers()
        self._runs: list[PageRun | None] = []
        self._free_numbers: list[int] = []
        self._order = RunOrder(num_groups, policy_key, reuse)
        self._lengths = [0] * num_groups
        self._newcomers: list[PageRun | None] = [None] * num_groups
        """Per group, the run that came last, if it takes in the next page by itself."""
        self._users = RunUsers()

    def __contains__(self, page: int) -> bool:
        return self._run_of[page] != _NOWHERE

    def listed(self, pages: Items) -> Items:
        """The pages among these that are in a run, in the order given."""
        return pages[self._all_run_of[pages] != _NOWHERE]

    def length(self, group: int) -> int:
        """The number of pages in a group's runs."""
        return self._lengths[group]

    def oldest(self, group: int, now_s: float, max_pages: int) -> list[int]:
        """The pages of a group that go first, as of now: so many at most, and all of one run."""
        run = self._order.first(group, now_s)
        if run is None:
            return []
        while self._run_of[run.pages[run.start]] != run.number:
            run.pass_first()
        live = (page for page in run.pages[run.start :] if self._run_of[page] == run.number)
        return [page for page, _ in zip(live, range(max_pages), strict=False)]

    def note_review(self) -> None:
        """Note that pages may be worth something else now."""
        self._order.note_review()

    def goes_before_all(self, page: int) -> bool:
        """Whether nobody comes back to a page, so that it goes before any that was ever used."""
        return isinstance(self.run_of(page).standing, Over)

    def listed_pages(self, group: int) -> Items:
        """All pages of a group, in no order; O(pages)."""
        return live_pages(list(self._order.unsorted(group)), self._all_run_of)[0]

    def newest_first(self) -> Iterator[int]:
        """All pages as they are listed now, however that changes until they are asked for.

        The groups take turns, some pages of each at a time.
        """
        groups = map(self._order.runs, range(len(self._lengths)))
        runs = [[(run.number, run.pages) for run in group] for group in groups]
        # To copy a column of a million takes half a ms.
        yield from walk_in_turns(self._run_of[:], runs)

    def append(self, group: int, page: int, now_s: float, coming: Coming | None = None) -> None:
        """Add a page that is new, as the most recently used.

        One that a user was to bring becomes its own, and goes before the pages of its chain that
        were there: it counts as if it had come when the chain was found to lack it.
        """
        if coming is None:
            self._append(new_pages(group, None, now_s, now_s), page, Idle(now_s))
        else:
            user, since_s, kind, turn = coming.user, coming.since_s, coming.kind, coming.turn
            origin = new_pages(group, user, since_s, now_s, kind=kind, turn=turn)
            self._append(origin, page, InUse(since_s))

    def put_back(self, group: int, page: int, now_s: float) -> None:
        """Add a page that `set_aside` has taken out, as the most recently used: its user's again.

        If that has ended meanwhile, it goes before all others.
        """
        owner, kind, turn = self._read.take(page)
        standing = Over() if owner in self._ended else Idle(now_s)
        user = None if owner == SEVERAL_USERS else owner
        origin = new_pages(group, user, now_s, now_s, kind=kind, turn=turn)
        self._append(origin, page, standing)

    def _append(self, origin: Origin, page: int, standing: Standing) -> None:
        run = self._newcomers[origin.group]
        is_full = run is None or len(run.pages) >= _MAX_NEWCOMERS
        if run is None or is_full or (run.origin, run.standing) != (origin, standing):
            is_before = isinstance(standing, InUse)
            run = self._add(origin, [], standing, origin.came_s, is_before_equals=is_before)
            self._newcomers[origin.group] = run
        run.add(page)
        self._run_of[page] = run.number
        self._lengths[origin.group] += 1

    def set_aside(self, group: int, page: int) -> None:
        """Take a page out that is to be read, and remember whose it is."""
        self._read.add(page, self.run_of(page))
        self.remove(group, page)

    def set_all_aside(self, group: int, pages: Items) -> None:
        """Take pages out that are to be read, and remember whose they are."""
        numbers, places = np.unique(self._all_run_of[pages], return_inverse=True)
        self._read.add_all(pages, [self._run(number) for number in numbers.tolist()], places)
        self.remove_all(group, pages)

    def remove(self, group: int, page: int) -> None:
        """Take a page out."""
        self._lengths[group] -= 1
        run = self._run(self._run_of[page])
        self._run_of[page] = _NOWHERE
        self._lose(run, 1)

    def remove_all(self, group: int, pages: Items) -> None:
        """Take these pages out."""
        numbers = self._all_run_of[pages]
        self._all_run_of[pages] = _NOWHERE
        self._lengths[group] -= len(pages)
        for number, start, end in stretches(numbers):
            self._lose(self._run(number), end - start)

    def use(
        self,
        group: int,
        chain: Items,
        user: UserId,
        standing: Standing,
        now_s: float,
        *,
        goes_on_s: float = -math.inf,
        kind: int | None = None,
    ) -> None:
        """Note that a user has pages of a chain, heads first, in use, or has had until now.

        Those that nobody else has used become its own, the others everybody's: down to the last
        that somebody else has used, as a chain's heads are of use to whoever uses its tail. For the
        same reason heads count as if they had come with the last of what is behind them; more of
        that comes from `goes_on_s` on. `kind`: what a request makes of them; None: it has ended.
        """
        chain = self.listed(chain)
        if not len(chain):
            return
        numbers = self._all_run_of[chain]
        parts = stretches(numbers)
        found = [self._run(number) for number in sorted({number for number, _, _ in parts})]
        others = {run.number for run in found if not run.is_free_for(user)}
        end = max((end for number, _, end in parts if number in others), default=0)

        num_hits = max(run.num_hits for run in found) + 1
        before = [self._run(number) for number, start, _ in parts if start < end]
        behind = [self._run(number) for number, start, _ in parts if start >= end]
        self.remove_all(group, chain)
        # The last pages first: so they go first among equals.
        for pages, owner, runs, later in (
            (chain[end:], user, behind, []),
            (chain[:end], SEVERAL_USERS, before, behind),
        ):
            if len(pages):
                kept_kind = runs[-1].kind if kind is None else kind
                origin = Origin(
                    group=group,
                    user=owner,
                    reader=user,
                    created_s=max(goes_on_s, *(run.created_s for run in (*runs, *later))),
                    num_hits=num_hits,
                    came_s=now_s,
                    kind=kept_kind,
                    turn=max(run.turn for run in runs),
                )
                self._add(origin, pages[::-1].tolist(), standing, now_s)

    def begin_use(self, user: UserId, now_s: float) -> None:
        """Note that a user goes on, though all its pages may be with readers now."""
        self._ended.note(user, InUse(now_s))

    def last_used_by(self, user: UserId, pages: Items) -> Items:
        """The pages among these that nobody has used since the user did, in the order given."""
        pages = self.listed(pages)
        parts = stretches(self._all_run_of[pages])
        own = {number for number, _, _ in parts if self._run(number).reader in (None, user)}
        return np.concatenate(
            [pages[:0], *(pages[at:end] for each, at, end in parts if each in own)]
        )

    def rest(self, user: UserId, now_s: float) -> None:
        """Note that a user reads nothing for now: what it used last counts as used now.

        A hint that it gave before holds no longer.
        """
        self._ended.note(user, Idle(now_s))
        runs = [
            run for run in self._order.as_they_go(self._users.runs_of(user)) if run.reader == user
        ]
        newest_s = max((run.created_s for run in runs), default=-math.inf)
        # Its end has left what others use, too, as it was: the heads of what it has alone.
        had_ended = any(isinstance(run.standing, Over) for run in runs)
        for run in runs:
            if had_ended or not isinstance(run.standing, Idle):
                run.go_on(newest_s)
                self._order.move(run, Idle(now_s), now_s)

    def kept_users(self, now_s: float) -> set[UserId]:
        """The users of what is kept by a hint; O(runs)."""
        kept: set[UserId] = set()
        for run in filter(None, self._runs):
            if isinstance(run.standing, Kept) and run.standing.until_s > now_s and run.reader:
                kept.add(run.reader)
        return kept

    def retain(self, user: UserId, standing: Standing, now_s: float) -> list[HintedPages]:
        """Change the standing of what a user has alone; returns the pages that this concerns.

        What it has used last and others use, too, is kept or comes back with that.
        """
        self._ended.note(user, standing)
        concerned = []
        for run in self._order.as_they_go(self._users.runs_of(user)):
            former = run.standing
            if run.user == user:
                new = of_own_pages(standing, former)
            else:
                new = of_shared_pages(standing, former, now_s)
            if new != former:
                self._order.move(run, new, now_s)
                concerned.append(HintedPages(run.group, self._live(run), user, new))
        return concerned

    def hinted(self, pages: Items) -> list[HintedPages]:
        """The pages among these of one KV group of which a hint says something."""
        pages = self.listed(pages)
        numbers = self._all_run_of[pages]
        found = [self._run(number) for number in sorted({each[0] for each in stretches(numbers)})]
        return [
            HintedPages(run.group, pages[numbers == run.number], run.reader, run.standing)
            for run in found
            if run.reader and isinstance(run.standing, HINTED)
        ]

    def parts_of(self, chain: Items) -> list[tuple[PageRun, int]]:
        """The runs in which pages of a chain are, heads first, each with the number of them."""
        numbers = self._all_run_of[self.listed(chain)]
        return [(self._run(number), end - start) for number, start, end in stretches(numbers)]

    def use_read(self, chain: Items, kind: int) -> None:
        """Note what a use makes of the pages of a chain that are being read."""
        self._read.use(self._unlisted(chain), kind)

    def last_turn_of_read(self, chain: Items) -> int:
        """The last turn in which pages of a chain came that are being read; -1: there are none."""
        return self._read.last_turn(self._unlisted(chain))

    def _unlisted(self, pages: Items) -> Items:
        return pages[self._all_run_of[pages] == _NOWHERE]

    def run_of(self, page: int) -> PageRun:
        """The run of a page that is in one."""
        return self._run(self._run_of[page])

    def _run(self, number: int) -> PageRun:
        run = self._runs[number]
        assert run is not None, "a page names a run that is there"
        return run

    def _add(
        self,
        origin: Origin,
        pages: list[int],
        standing: Standing,
        now_s: float,
        *,
        is_before_equals: bool = False,
    ) -> PageRun:
        number = self._free_numbers.pop() if self._free_numbers else len(self._runs)
        run = origin.begin(number, pages, standing)
        if number == len(self._runs):
            self._runs.append(run)
        else:
            self._runs[number] = run
        self._users.add(run)
        self._newcomers[run.group] = None
        self._all_run_of[np.array(pages, dtype=np.int64)] = number
        self._lengths[run.group] += len(pages)
        if is_before_equals:
            self._order.add_before_equals(run, standing, now_s)
        else:
            self._order.move(run, standing, now_s)
        return run

    def _lose(self, run: PageRun, num_pages: int) -> None:
        """Note that pages have left a run."""
        run.lose(num_pages)
        # A page that left it may come back as the newest: not into this run, where it once was.
        if self._newcomers[run.group] is run:
            self._newcomers[run.group] = None
        if run.num_live == 0:
            self._drop(run)
        elif 2 * run.num_live < len(run.pages) - run.start:
            run.shorten(self._live(run).tolist())

    def _drop(self, run: PageRun) -> None:
        self._order.remove(run)
        self._runs[run.number] = None
        self._free_numbers.append(run.number)
        self._users.drop(run)

    def _live(self, run: PageRun) -> Items:
        pages = np.array(run.pages[run.start :], dtype=np.int64)
        live: Items = pages[self._all_run_of[pages] == run.number]
        return live

    def check(self) -> None:
        """Raise AccountingError unless runs, their order, their users and the column agree."""
        runs: set[PageRun] = set()
        num_found = 0
        self._order.check()
        for group, length in enumerate(self._lengths):
            of_group = list(self._order.unsorted(group))
            num_found += check_group(group, of_group, self._all_run_of, length)
            runs.update(of_group)

        self._users.check(runs)
        num_listed = int(np.count_nonzero(self._all_run_of != _NOWHERE))
        if num_listed != num_found:
            raise AccountingError(f"{num_listed} pages are in runs that have {num_found}")
