"""Watches what L2 learns under `reuse`: each page's kind and turn, who goes first, what is counted.

Everything is said again in own words, page by page, where L2 has runs of pages.
"""

import math
from collections.abc import Iterator, Sequence

from raydix.ids import SEVERAL_USERS, HostPageId, PageKey, UserId
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.page_run import PageRun
from raydix.runtime.cache.reuse_chances import NUM_TURNS, kind_of, turn_of
from raydix.runtime.cache.standing import GROWING, Over, counts_as_used_s

_NUM_KINDS = 1 + kind_of(NUM_TURNS, 1 << 60, num_hits=2)
_NUM_GONE = 8192
Name = tuple[int, PageKey]
"""The KV group and the key of a page."""


class Mislearnt(AssertionError):
    """L2 believes something else of its pages than their use says."""


class ReuseWatch:
    """Follows one index from its start on, by the calls that it gets.

    A request makes all pages of its chain that are there of one kind, but for the lowest bit, and
    brings new ones of that. Where a use ends, pages of the chain may become of the kind of those
    behind them, which they are of no use without.
    """

    def __init__(self, index: HostIndex) -> None:
        assert index._reuse is not None, "the policy is to learn"
        self._index, self._chances = index, index._reuse._chances
        self._num_requests = self._num_dropped = 0
        self._num_pages = 0
        """The pages that were used again or have made way."""
        self._kinds: dict[Name, set[int]] = {}
        """The kinds that a page may be of, with the lowest bit set."""
        self._least_turns: dict[Name, int] = {}
        self._coming: dict[PageKey, tuple[UserId, int, int]] = {}
        """Who is to bring a page, of which kind and turn."""
        self._gone: dict[int, tuple[PageKey, int]] = {}
        """The first pages of chains that have made way, with the turn of their last use."""
        self._touch, self._end = index.touch_chain, index.end_use
        self._publish, self._make_way = index.publish, index._make_way
        self._rest = index.rest
        vars(index).update(
            touch_chain=self._sees_touch,
            end_use=self._sees_end,
            publish=self._sees_page,
            _make_way=self._sees_drop,
            rest=self._sees_rest,
        )

    def _sees_touch(
        self, group: int, keys: Sequence[PageKey], user: UserId = SEVERAL_USERS
    ) -> None:
        ready = [(group, key) for key in keys if self._index.find(group, key) is not None]
        if user == SEVERAL_USERS:
            self._touch(group, keys, user)
            self._mix(ready)
            return

        self._num_requests += group == 0
        self._num_pages += sum(self._run(name) is not None for name in ready)
        turn = 1 + max([self._turn(name) for name in ready], default=-1)
        lacking = [key for key in keys if (group, key) not in ready]
        if lacking:
            turn = max(turn, self._come_back(lacking[0]))
        turn = min(turn, NUM_TURNS - 1)
        kind = kind_of(turn, len(keys), num_hits=2)

        self._touch(group, keys, user)
        self._kinds.update({name: {kind} for name in ready})
        self._coming.update(dict.fromkeys(lacking, (user, kind, turn)))
        for name in ready:
            self._check_page(name)

    def _come_back(self, key: PageKey) -> int:
        """The turn of a request that brings a page back; 0: it is not known to have been there."""
        slot = _slot_of(key)
        if slot not in self._gone or self._gone[slot][0] != key:
            return 0
        return 1 + self._gone.pop(slot)[1]

    def _sees_end(self, group: int, keys: Sequence[PageKey], user: UserId) -> None:
        self._end(group, keys, user)
        self._mix([(group, key) for key in keys if self._index.find(group, key) is not None])

    def _mix(self, ready: Sequence[Name]) -> None:
        """Let pages of a chain be of any kind of those behind them."""
        behind: set[int] = set()
        for name in reversed(ready):
            behind |= self._kinds[name]
            self._kinds[name] = behind.copy()

    def _sees_page(self, page_id: HostPageId, key: PageKey) -> bool:
        name = self._index._pages.group_of(page_id), key
        if not self._publish(page_id, key):
            return False
        _, kind, turn = self._coming.get(key, (SEVERAL_USERS, 1, 0))
        self._kinds[name], self._least_turns[name] = {kind}, turn
        self._check_page(name)
        return True

    def _sees_drop(self, pages: Sequence[int]) -> None:
        for place, page in enumerate(pages):
            name = self._index.name(HostPageId(page))
            assert name is not None, "what makes way is READY"
            run = self._index._evictable.run_of(page)
            if run.num_live == place + 1:
                self._gone[_slot_of(name[1])] = name[1], turn_of(run.kind)
        self._num_pages += len(pages)
        self._num_dropped += len(pages)
        self._make_way(pages)

    def _sees_rest(self, user: UserId) -> None:
        self._rest(user)
        self._coming = {key: each for key, each in self._coming.items() if each[0] != user}

    def _run(self, name: Name) -> PageRun | None:
        """The run of a page that is there; None: somebody reads it."""
        page = self._page(name)
        return self._index._evictable.run_of(page) if page in self._index._evictable else None

    def _page(self, name: Name) -> HostPageId:
        page = self._index.find(*name)
        assert page is not None, "the page is there"
        return page

    def _turn(self, name: Name) -> int:
        run = self._run(name)
        return self._index._evictable._read._turn_of[self._page(name)] if run is None else run.turn

    def _kind(self, name: Name) -> int:
        run = self._run(name)
        return self._index._evictable._read._kind_of[self._page(name)] if run is None else run.kind

    def check(self) -> None:
        """Raise Mislearnt unless L2 believes of its pages what their use says."""
        for group in range(self._index.num_groups):
            self._check_pages(group)
            self._check_order(group)
        found = {
            "requests": (self._chances._num_requests, self._num_requests),
            "pages that made way": (self._chances._num_dropped, self._num_dropped),
            "pages in all": (sum(self._chances._pages), self._num_pages),
        }
        for what, (counted, expected) in found.items():
            if counted != expected:
                raise Mislearnt(f"{counted} {what} are counted; expected {expected}")

    def _check_pages(self, group: int) -> None:
        """Check all pages of a group, without a call for each of what may be thousands."""
        index, runs = self._index, self._index._evictable
        facts = {run.number: (run.kind, run.turn) for run in runs._order.unsorted(group)}
        keys = list(index._groups[group].ready)
        for key, page in zip(keys, index.find_all(group, keys), strict=True):
            assert page is not None, "the page is there"
            read = runs._read._kind_of[page], runs._read._turn_of[page]
            kind, turn = facts.get(runs._run_of[page], read)
            name = group, key
            if kind | 1 not in self._kinds[name] or turn < self._least_turns[name]:
                self._check_facts(name, kind, turn)

    def _check_page(self, name: Name) -> None:
        self._check_facts(name, self._kind(name), self._turn(name))

    def _check_facts(self, name: Name, kind: int, turn: int) -> None:
        if kind | 1 not in self._kinds[name]:
            raise Mislearnt(f"a page is of kind {kind}; expected one of {self._kinds[name]}")
        if turn < self._least_turns[name]:
            raise Mislearnt(f"a page is of turn {turn}; it came in {self._least_turns[name]}")

    def _check_order(self, group: int) -> None:
        last_s = -math.inf
        for used_s in self._due_times(group):
            if used_s < last_s:
                raise Mislearnt(f"pages that are due at {last_s} s go before those at {used_s} s")
            last_s = used_s

    def _due_times(self, group: int) -> Iterator[float]:
        """When the pages of each run are due, in the order in which L2 would give them up.

        What counts as used later while time passes may still be where it was.
        """
        worth_s = [self._chances.worth_s(kind) for kind in range(_NUM_KINDS)]
        most_s = max(worth_s)
        for run in self._index._evictable._order.runs(group):
            if isinstance(run.standing, GROWING):
                continue
            own_s = min(worth_s[run.kind], worth_s[run.kind | 1])
            due_s = counts_as_used_s(run.standing, self._index._now_s)
            is_over = isinstance(run.standing, Over)
            yield due_s if is_over else due_s + (most_s if run.user == SEVERAL_USERS else own_s)


def _slot_of(key: PageKey) -> int:
    return (int.from_bytes(key[:8], "big") or 1) % _NUM_GONE
