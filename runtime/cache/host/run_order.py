"""The order in which runs of pages go, as a policy says."""

from collections.abc import Iterator

from raydix.runtime.cache.eviction_policies import EvictionKey, PolicyKey, eviction_key
from raydix.runtime.cache.host.page_reuse import PageReuse
from raydix.runtime.cache.host.page_run import PageRun
from raydix.runtime.cache.sorted_entries import SortedEntries
from raydix.runtime.cache.standing import GROWING, Standing


class RunOrder:
    """Owns: per KV group, the order in which runs go: smallest key first, then first come."""

    def __init__(self, num_groups: int, policy_key: PolicyKey, reuse: PageReuse | None) -> None:
        """`reuse`: what is learnt for that policy; None under others."""
        self._policy_key, self._reuse = policy_key, reuse
        self._orders = [SortedEntries[PageRun]() for _ in range(num_groups)]
        self._last_ticket = self._first_ticket = 0

    def runs(self, group: int) -> Iterator[PageRun]:
        """The runs of a group, as they would go."""
        return (run for _, _, run in self._orders[group])

    def first(self, group: int, now_s: float) -> PageRun | None:
        """The run of a group that goes first, as of now."""
        while (entry := self._orders[group].first()) is not None:
            run = entry[2]
            # Its key may have grown since; none shrinks, so nothing behind it has come before it.
            if isinstance(run.standing, GROWING) and self._key(run, now_s) != entry[0]:
                self._place(run, run.standing, now_s, entry[1])
                continue
            return run
        return None

    def value_anew(self, now_s: float) -> None:
        """Give all runs their places by what they are worth now; O(runs).

        Each by itself would do so too late: heads may not go before tails that were worth more.
        """
        for order in self._orders:
            for _, ticket, run in [*order]:
                former_s = run.worth_s
                self._value(run)
                if run.worth_s != former_s:
                    self._place(run, run.standing, now_s, ticket)

    def add(self, run: PageRun, standing: Standing, now_s: float) -> None:
        """Give a new run its place behind its equals."""
        self._value(run)
        self.move(run, standing, now_s)

    def add_before_equals(self, run: PageRun, standing: Standing, now_s: float) -> None:
        """Give a new run its place before its equals."""
        self._value(run)
        self._first_ticket -= 1
        self._place(run, standing, now_s, self._first_ticket)

    def _value(self, run: PageRun) -> None:
        if self._reuse is not None:
            run.value(self._reuse.worth_s(run))

    def move(self, run: PageRun, standing: Standing, now_s: float) -> None:
        """Give a run of another standing its place, behind its equals."""
        self._last_ticket += 1
        self._place(run, standing, now_s, self._last_ticket)

    def remove(self, run: PageRun) -> None:
        """Take a run out."""
        assert run.entry is not None, "a run has a place"
        self._orders[run.group].remove(run.entry)

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

    def check(self) -> None:
        """Raise AccountingError unless each order is sorted."""
        for order in self._orders:
            order.check()
