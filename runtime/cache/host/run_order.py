"""The order in which runs of pages go, as a policy says."""

from collections.abc import Iterable, Iterator
from heapq import merge

from raydix.errors import AccountingError
from raydix.runtime.cache.eviction_policies import EvictionKey, PolicyKey, eviction_key
from raydix.runtime.cache.host.page_reuse import PageReuse
from raydix.runtime.cache.host.page_run import PageRun
from raydix.runtime.cache.sorted_entries import OrderEntry, OrderPlace, SortedEntries
from raydix.runtime.cache.standing import GROWING, Standing


class RunOrder:
    """Owns: per KV group, the order in which runs go: smallest key first, then first come.

    Under `reuse` runs that are always worth the same have an order of their own, by last use: so a
    review that finds other worths moves none, and some hundred of them tell which run goes first.
    """

    def __init__(self, num_groups: int, policy_key: PolicyKey, reuse: PageReuse | None) -> None:
        """`reuse`: what is learnt for that policy; None under others."""
        self._policy_key, self._reuse = policy_key, reuse
        self._orders: list[dict[int, SortedEntries[PageRun]]] = [{} for _ in range(num_groups)]
        """Per group and class of `PageReuse`, the runs that there are."""
        self._firsts: list[PageRun | None] = [None] * num_groups
        """The run of each group that goes first; None: it is to be sought."""
        self._last_ticket = self._first_ticket = 0

    def runs(self, group: int) -> Iterator[PageRun]:
        """The runs of a group, as they would go."""
        orders = self._orders[group].values()
        return (run for *_, run in merge(*map(self._comparable, orders)))

    def _comparable(self, order: SortedEntries[PageRun]) -> Iterator[OrderEntry[PageRun]]:
        """The entries of an order, with what its runs are worth: as those of others compare."""
        first = order.first()
        if self._reuse is None or first is None:
            return iter(order)
        worth_s = self._reuse.worth_s(first[2])
        return ((_add(key, worth_s), ticket, run) for key, ticket, run in order)

    def unsorted(self, group: int) -> Iterator[PageRun]:
        """The runs of a group, in no order."""
        return (run for order in self._orders[group].values() for *_, run in order)

    def as_they_go(self, runs: Iterable[PageRun]) -> list[PageRun]:
        """Sort runs of any groups by when they would go."""
        return sorted(runs, key=self._place_of)

    def first(self, group: int, now_s: float) -> PageRun | None:
        """The run of a group that goes first, as of now."""
        while (run := self._firsts[group] or self._find_first(group)) is not None:
            entry = _entry_of(run)
            # Its key may have grown since; none shrinks, so nothing behind it has come before it.
            if isinstance(run.standing, GROWING) and self._key(run, now_s) != entry[0]:
                self._place(run, run.standing, now_s, entry[1])
                continue
            self._firsts[group] = run
            return run
        return None

    def _find_first(self, group: int) -> PageRun | None:
        heads = (order.first() for order in self._orders[group].values())
        return min((head[2] for head in heads if head), key=self._place_of, default=None)

    def note_review(self) -> None:
        """Note that runs may be worth something else now."""
        self._firsts = [None] * len(self._firsts)

    def add_before_equals(self, run: PageRun, standing: Standing, now_s: float) -> None:
        """Give a new run its place before its equals."""
        self._first_ticket -= 1
        self._place(run, standing, now_s, self._first_ticket)

    def move(self, run: PageRun, standing: Standing, now_s: float) -> None:
        """Give a new run, or one of another standing, its place behind its equals."""
        self._last_ticket += 1
        self._place(run, standing, now_s, self._last_ticket)

    def remove(self, run: PageRun) -> None:
        """Take a run out."""
        orders, its_class = self._orders[run.group], self._class_of(run)
        orders[its_class].remove(_entry_of(run))
        if orders[its_class].first() is None:
            del orders[its_class]
        if self._firsts[run.group] is run:
            self._firsts[run.group] = None

    def _place(self, run: PageRun, standing: Standing, now_s: float, ticket: int) -> None:
        if run.entry is not None:
            self.remove(run)
        key = eviction_key(self._policy_key, run, standing, now_s)
        entry = (key, ticket, run)
        run.place(standing, entry)
        order = self._orders[run.group].setdefault(self._class_of(run), SortedEntries[PageRun]())
        order.add(entry)
        if order.first() is entry:
            self._firsts[run.group] = None

    def _class_of(self, run: PageRun) -> int:
        return 0 if self._reuse is None else self._reuse.class_of(run)

    def _place_of(self, run: PageRun) -> OrderPlace:
        key, ticket, _ = _entry_of(run)
        return (key if self._reuse is None else _add(key, self._reuse.worth_s(run))), ticket

    def _key(self, run: PageRun, now_s: float) -> EvictionKey:
        return eviction_key(self._policy_key, run, run.standing, now_s)

    def check(self) -> None:
        """Raise AccountingError unless each order is sorted, and what goes first is."""
        for group, orders in enumerate(self._orders):
            for order in orders.values():
                order.check()
            if self._firsts[group] not in (None, self._find_first(group)):
                raise AccountingError(f"group {group}: another run goes first than is known")


def _entry_of(run: PageRun) -> OrderEntry[PageRun]:
    assert run.entry is not None, "a run has a place"
    return run.entry


def _add(key: EvictionKey, worth_s: float) -> EvictionKey:
    return key if isinstance(key, tuple) else key + worth_s
