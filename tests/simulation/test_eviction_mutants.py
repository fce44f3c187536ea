"""Mutants of what tiers learn of their pages: `reuse` in L2, `tlru` in L1.

In the world of those of `reuse` pages are worth anything from the fourth request on, and something
else after four more: what a real tier learns takes hundreds of requests to begin.
"""

from dataclasses import replace
from typing import Any

import pytest

from raydix.ids import UserId
from raydix.runtime.cache.chain_needs import ChainNeeds
from raydix.runtime.cache.eviction_policies import EVICTION_POLICIES
from raydix.runtime.cache.host.coming_pages import Coming
from raydix.runtime.cache.host.index import HostIndex
from raydix.runtime.cache.host.page_reuse import PageReuse
from raydix.runtime.cache.host.page_run import PageRun
from raydix.runtime.cache.host.page_runs import PageRuns
from raydix.runtime.cache.host.read_pages import ReadPages
from raydix.runtime.cache.host.run_order import RunOrder
from raydix.runtime.cache.radix_eviction import RadixEviction
from raydix.runtime.cache.radix_forest import RadixForest
from raydix.runtime.cache.radix_node import RadixNode
from raydix.runtime.cache.reuse_chances import ReuseChances
from raydix.runtime.config.policies import EvictionPolicy
from tests.simulation.layouts import TWO_GROUPS
from tests.simulation.test_mutants import Case, Patch, find
from tests.simulation.workload import BASE_SETTINGS, Workload

_REVIEW_REQUESTS = 4
_WORTH_S = 0.4
_NUM_WORTHS = 5

LEARNING = Workload(
    seed=0,
    settings=replace(BASE_SETTINGS, num_pages=(30,)),
    l2_pages=24,
    l2_eviction=EvictionPolicy.REUSE,
    storage=None,
    num_requests=32,
    check_interval=1,
)
"""L2 loses much of what comes back."""


def any_worths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a world, not a mutant: kinds are worth anything, and something else now and then."""
    begin_request = ReuseChances.begin_request

    def begin(self: ReuseChances, now_s: float) -> bool:
        begin_request(self, now_s)
        return self._num_requests % _REVIEW_REQUESTS == 0

    def worth_s(self: ReuseChances, kind: int) -> float:
        review = self._num_requests // _REVIEW_REQUESTS
        return _WORTH_S * ((7 * kind + review) % _NUM_WORTHS) if review else 0.0

    monkeypatch.setattr(ReuseChances, "begin_request", begin)
    monkeypatch.setattr(ReuseChances, "worth_s", worth_s)
    monkeypatch.setattr(ReuseChances, "most_s", _WORTH_S * (_NUM_WORTHS - 1))


def reviews_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What went first by former worths still does."""
    monkeypatch.setattr(RunOrder, "note_review", lambda self: None)


def heads_go_by_their_own_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    """What several have used is worth what its last use has made of it."""

    def worth_s(self: PageReuse, run: PageRun) -> float:
        return min(self._chances.worth_s(run.kind), self._chances.worth_s(run.kind | 1))

    monkeypatch.setattr(PageReuse, "worth_s", worth_s)


def new_pages_are_worth_more_than_old_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain's new pages go by their own kind alone."""

    def worth_s(self: PageReuse, run: PageRun) -> float:
        return self._most_s if run.user == 0 else self._chances.worth_s(run.kind)

    monkeypatch.setattr(PageReuse, "worth_s", worth_s)


def chains_that_went_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes back counts as never seen."""
    monkeypatch.setattr(ReuseChances, "gone", lambda self, *run: None)


def what_goes_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages make way, and cost nothing."""
    monkeypatch.setattr(ReuseChances, "dropped", lambda self, *run: None)


def slabs_that_go_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is learnt of pages whose slab another KV group gets."""
    take_slab = HostIndex._take_slab

    def take_unlearnt(self: HostIndex, slab: int, group: int) -> None:
        reuse, self._reuse = self._reuse, None
        take_slab(self, slab, group)
        self._reuse = reuse

    monkeypatch.setattr(HostIndex, "_take_slab", take_unlearnt)


def read_pages_stay_of_their_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request makes nothing of pages that are pinned or leased."""
    monkeypatch.setattr(ReadPages, "use", lambda self, pages, kind: None)


def read_pages_come_back_as_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was pinned or leased has no kind and no turn when it is given back."""
    take = ReadPages.take

    def take_owner(self: ReadPages, page: int) -> tuple[UserId, int, int]:
        return take(self, page)[0], 0, 0

    monkeypatch.setattr(ReadPages, "take", take_owner)


def read_pages_have_had_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request is in the turn after that of the pages which nobody reads."""
    monkeypatch.setattr(PageRuns, "last_turn_of_read", lambda self, chain: -1)


def new_pages_have_no_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages come as if no request had asked for them."""
    append = PageRuns.append

    def append_plain(
        self: PageRuns, group: int, page: int, now_s: float, coming: Coming | None = None
    ) -> None:
        plain = None if coming is None else replace(coming, kind=0, turn=0)
        append(self, group, page, now_s, plain)

    monkeypatch.setattr(PageRuns, "append", append_plain)


def ends_make_all_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a use makes pages of the first kind."""
    use = PageRuns.use

    def use_as_new(self: PageRuns, *chain: Any, kind: int | None = None, **rest: Any) -> None:
        use(self, *chain, kind=kind or 0, **rest)

    monkeypatch.setattr(PageRuns, "use", use_as_new)


def uses_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that are used again count as if they had not been there."""
    use = PageReuse.use
    monkeypatch.setattr(PageReuse, "use", lambda self, chain: use(self, replace(chain, parts=())))


def requests_count_once_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain in two KV groups is of two requests."""
    learn = HostIndex._learn

    def learn_alone(self: HostIndex, group: int, *chain: Any) -> Any:
        if group and self._reuse is not None:
            self._reuse.begin_request(self._now_s)
        return learn(self, group, *chain)

    monkeypatch.setattr(HostIndex, "_learn", learn_alone)


def no_end_is_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A next prompt is said to need all of its chain."""
    monkeypatch.setattr(RadixNode, "spare", lambda self, *, num_needed: None)


def ends_that_went_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain counts as long as its last use was."""

    def reach(self: RadixNode, deepest: int) -> None:
        self.deepest = deepest

    monkeypatch.setattr(RadixNode, "reach", reach)


def uses_concern_the_last_pages_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes before the last pages of a chain stays as its former use has left it."""

    def spare_end(self: RadixEviction, node: RadixNode, needs: ChainNeeds) -> None:
        node.reach(node.end)
        node.spare(num_needed=needs.num_needed(node.deepest))

    monkeypatch.setattr(RadixEviction, "_spare_ends", spare_end)


def requests_bring_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No prompt counts as having brought pages."""
    monkeypatch.setattr(ChainNeeds, "brought", lambda self, num_pages: None)


def those_that_bring_nothing_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request is counted when it brings pages."""
    begin_request, brought = ChainNeeds.begin_request, ChainNeeds.brought

    def count(self: ChainNeeds, num_pages: int) -> None:
        begin_request(self)
        brought(self, num_pages)

    monkeypatch.setattr(ChainNeeds, "begin_request", lambda self: None)
    monkeypatch.setattr(ChainNeeds, "brought", count)


def spare_ends_wait_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is spare goes when its last use says."""
    monkeypatch.setitem(
        EVICTION_POLICIES, EvictionPolicy.TLRU, lambda pages, used_s: (True, used_s)
    )


def parts_know_no_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a node is parted, its upper part has nothing behind it."""
    split = RadixForest.split

    def split_anew(self: RadixForest, node: RadixNode, end: int) -> RadixNode:
        upper = split(self, node, end)
        upper.deepest = 0
        return upper

    monkeypatch.setattr(RadixForest, "split", split_anew)


TWO_KINDS_OF_PAGES = replace(
    LEARNING, settings=replace(LEARNING.settings, layout=TWO_GROUPS, num_pages=(30, 30))
)
"""Slabs go from one KV group to another."""

SPARING = Workload(
    seed=0,
    settings=replace(BASE_SETTINGS, num_pages=(30,), eviction=EvictionPolicy.TLRU),
    num_requests=32,
    check_interval=1,
)
"""L1 gives up ends of conversations first."""


def learning(mutant: Patch, workload: Workload = LEARNING) -> Case:
    """A case in the world where kinds are worth anything."""
    return Case(mutant=mutant, workload=workload, world=any_worths)


CASES = [
    learning(reviews_are_forgotten),
    learning(heads_go_by_their_own_worth),
    learning(new_pages_are_worth_more_than_old_ones),
    learning(chains_that_went_are_forgotten),
    learning(what_goes_is_not_counted),
    learning(slabs_that_go_are_not_counted, TWO_KINDS_OF_PAGES),
    learning(read_pages_stay_of_their_kind),
    learning(read_pages_come_back_as_new),
    learning(read_pages_have_had_no_turn),
    learning(new_pages_have_no_kind),
    learning(ends_make_all_new),
    learning(uses_are_not_counted),
    learning(requests_count_once_a_group, TWO_KINDS_OF_PAGES),
    Case(mutant=no_end_is_spare, workload=SPARING),
    Case(mutant=ends_that_went_are_forgotten, workload=SPARING),
    Case(mutant=uses_concern_the_last_pages_alone, workload=SPARING),
    Case(mutant=requests_bring_nothing, workload=SPARING),
    Case(mutant=those_that_bring_nothing_do_not_count, workload=SPARING),
    Case(mutant=spare_ends_wait_their_turn, workload=SPARING),
    Case(mutant=parts_know_no_depth, workload=SPARING),
]


@pytest.mark.part
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.mutant.__name__)
def test_mutant_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    find(case, monkeypatch)
