"""The order in which the pages of L2 go that nobody reads: runs of pages, as a policy says."""

import math
from array import array
from collections.abc import Iterator

import numpy as np

from raydix.errors import AccountingError
from raydix.ids import SEVERAL_USERS, UserId
from raydix.runtime.cache.eviction_policies import EvictionKey, PolicyKey, eviction_key
from raydix.runtime.cache.host.coming_pages import Coming
from raydix.runtime.cache.host.lru_lists import Items, view_of
from raydix.runtime.cache.host.page_run import (
    EndedUsers,
    HintedPages,
    Origin,
    PageRun,
    check_group,
    new_pages,
    stretches,
    users_of,
    walk_in_turns,
)
from raydix.runtime.cache.sorted_entries import SortedEntries
from raydix.runtime.cache.standing import (
    GROWING,
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

    def __init__(self, num_pages: int, num_groups: int, policy_key: PolicyKey) -> None:
        self._policy_key = policy_key
        self._run_of = array("i", [_NOWHERE]) * num_pages
        """The number of each page's run."""
        self._all_run_of = view_of(self._run_of, np.intc)
        self._owner_of = array("q", bytes(8 * num_pages))
        self._all_owner_of = view_of(self._owner_of, np.int64)
        """The only user of each page that is out of its run while it is read; 0: several."""
        self._ended = EndedUsers()
        self._runs: list[PageRun | None] = []
        self._free_numbers: list[int] = []
        self._orders = [SortedEntries[PageRun]() for _ in range(num_groups)]
        self._lengths = [0] * num_groups
        self._newcomers: list[PageRun | None] = [None] * num_groups
        """Per group, the run that came last, if it takes in the next page by itself."""
        self._of_user: dict[UserId, dict[PageRun, None]] = {}
        """The runs that a user has alone, and those that it used last: a set in order."""
        self._last_ticket = self._first_ticket = 0

    def __contains__(self, page: int) -> bool:
        return self._run_of[page] != _NOWHERE

    def listed(self, pages: Items) -> Items:
        """The pages among these that are in a run, in the order given."""
        return pages[self._all_run_of[pages] != _NOWHERE]

    def length(self, group: int) -> int:
        """The number of pages in a group's runs."""
        return self._lengths[group]

    def oldest(self, group: int, now_s: float) -> int | None:
        """The page of a group that goes first, as of now."""
        while (entry := self._orders[group].first()) is not None:
            run = entry[2]
            # Its key may have grown since; none shrinks, so nothing behind it has come before it.
            if isinstance(run.standing, GROWING) and self._key(run, now_s) != entry[0]:
                self._place(run, run.standing, now_s, entry[1])
                continue
            while self._run_of[run.pages[run.start]] != run.number:
                run.pass_first()
            return run.pages[run.start]
        return None

    def goes_before_all(self, page: int) -> bool:
        """Whether nobody comes back to a page, so that it goes before any that was ever used."""
        return isinstance(self._run(self._run_of[page]).standing, Over)

    def items(self, group: int) -> Iterator[int]:
        """All pages of a group, in the order in which they would go; O(pages)."""
        for _, _, run in self._orders[group]:
            yield from self._live(run).tolist()

    def newest_first(self) -> Iterator[int]:
        """All pages as they are listed now, however that changes until they are asked for.

        The groups take turns, some pages of each at a time.
        """
        # To copy a column of a million takes half a ms.
        run_of = self._run_of[:]
        runs = [[(run.number, run.pages) for _, _, run in order] for order in self._orders]
        yield from walk_in_turns(run_of, runs)

    def append(self, group: int, page: int, now_s: float, coming: Coming | None = None) -> None:
        """Add a page that is new, as the most recently used.

        One that a user was to bring becomes its own, and goes before the pages of its chain that
        were there: it counts as if it had come when the chain was found to lack it.
        """
        if coming is None:
            self._append(new_pages(group, None, now_s, now_s), page, Idle(now_s))
        else:
            since_s = coming.since_s
            self._append(new_pages(group, coming.user, since_s, now_s), page, InUse(since_s))

    def put_back(self, group: int, page: int, now_s: float) -> None:
        """Add a page that `set_aside` has taken out, as the most recently used: its user's again.

        If that has ended meanwhile, it goes before all others.
        """
        owner = UserId(self._owner_of[page])
        self._owner_of[page] = SEVERAL_USERS
        standing = Over() if owner in self._ended else Idle(now_s)
        user = None if owner == SEVERAL_USERS else owner
        self._append(new_pages(group, user, now_s, now_s), page, standing)

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
        self._owner_of[page] = self._run(self._run_of[page]).user or SEVERAL_USERS
        self.remove(group, page)

    def set_all_aside(self, group: int, pages: Items) -> None:
        """Take pages out that are to be read, and remember whose they are."""
        numbers, places = np.unique(self._all_run_of[pages], return_inverse=True)
        users = [self._run(number).user or SEVERAL_USERS for number in numbers.tolist()]
        self._all_owner_of[pages] = np.array(users, dtype=np.int64)[places]
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
    ) -> None:
        """Note that a user has pages of a chain, heads first, in use, or has had until now.

        Those that nobody else has used become its own, the others everybody's: down to the last
        that somebody else has used, as a chain's heads are of use to whoever uses its tail. For the
        same reason heads count as if they had come with the last of what is behind them; more of
        that comes from `goes_on_s` on.
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
        behind = [self._run(number) for number, start, _ in parts if start >= end]
        self.remove_all(group, chain)
        # The last pages first: so they go first among equals.
        for pages, owner, runs in (
            (chain[end:], user, behind),
            (chain[:end], SEVERAL_USERS, found),
        ):
            if len(pages):
                created_s = max(goes_on_s, *(run.created_s for run in runs))
                origin = Origin(group, owner, user, created_s, num_hits, came_s=now_s)
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
        runs = [run for run in self._runs_of(user) if run.reader == user]
        newest_s = max((run.created_s for run in runs), default=-math.inf)
        for run in runs:
            if not isinstance(run.standing, Idle):
                run.go_on(newest_s)
                self._enter(run, Idle(now_s), now_s)

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
        for run in self._runs_of(user):
            former = run.standing
            if run.user == user:
                new = of_own_pages(standing, former)
            else:
                new = of_shared_pages(standing, former, now_s)
            if new != former:
                self._enter(run, new, now_s)
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

    def _runs_of(self, user: UserId) -> list[PageRun]:
        """The runs of a user as they go, so that they still do if all come to one place."""
        entries = [run.entry for run in self._of_user.get(user, ()) if run.entry is not None]
        return [run for _, _, run in sorted(entries)]

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
        for user in users_of(run):
            self._of_user.setdefault(user, {})[run] = None

        self._newcomers[run.group] = None
        self._all_run_of[np.array(pages, dtype=np.int64)] = number
        self._lengths[run.group] += len(pages)
        if is_before_equals:
            self._first_ticket -= 1
            self._place(run, standing, now_s, self._first_ticket)
        else:
            self._enter(run, standing, now_s)
        return run

    def _enter(self, run: PageRun, standing: Standing, now_s: float) -> None:
        """Give a run its place in the order, behind its equals."""
        self._last_ticket += 1
        self._place(run, standing, now_s, self._last_ticket)

    def _place(self, run: PageRun, standing: Standing, now_s: float, ticket: int) -> None:
        order = self._orders[run.group]
        if run.entry is not None:
            order.remove(run.entry)
        key = eviction_key(self._policy_key, run, standing, now_s)
        entry = (key, ticket, run)
        run.place(standing, entry)
        order.add(entry)

    def _key(self, run: PageRun, now_s: float) -> EvictionKey:
        return eviction_key(self._policy_key, run, run.standing, now_s)

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
        assert run.entry is not None
        self._orders[run.group].remove(run.entry)
        self._runs[run.number] = None
        self._free_numbers.append(run.number)
        for user in users_of(run):
            runs = self._of_user[user]
            del runs[run]
            if not runs:
                del self._of_user[user]

    def _live(self, run: PageRun) -> Items:
        pages = np.array(run.pages[run.start :], dtype=np.int64)
        live: Items = pages[self._all_run_of[pages] == run.number]
        return live

    def check(self) -> None:
        """Raise AccountingError unless runs, their order, their users and the column agree."""
        of_user: dict[UserId, set[PageRun]] = {}
        num_found = 0
        for group, order in enumerate(self._orders):
            order.check()
            pages = {run: self._live(run).tolist() for _, _, run in order}
            num_found += check_group(group, pages, self._lengths[group])
            for run in pages:
                for user in users_of(run):
                    of_user.setdefault(user, set()).add(run)

        if {user: set(runs) for user, runs in self._of_user.items()} != of_user:
            raise AccountingError(f"{len(self._of_user)} users have runs; expected {len(of_user)}")
        num_listed = int(np.count_nonzero(self._all_run_of != _NOWHERE))
        if num_listed != num_found:
            raise AccountingError(f"{num_listed} pages are in runs that have {num_found}")
