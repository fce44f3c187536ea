"""Runs of pages: who has them, and which goes first."""

import numpy as np
import pytest

from raydix.errors import AccountingError
from raydix.ids import SEVERAL_USERS, UserId
from raydix.runtime.cache.eviction_policies import EVICTION_POLICIES
from raydix.runtime.cache.host.coming_pages import Coming
from raydix.runtime.cache.host.lru_lists import Items
from raydix.runtime.cache.host.page_run import HintedPages, stretches
from raydix.runtime.cache.host.page_runs import PageRuns
from raydix.runtime.cache.standing import Away, Idle, InUse, Kept, Over, Standing
from raydix.runtime.config.policies import EvictionPolicy

A, B = UserId(1), UserId(2)


def pages(*ids: int) -> Items:
    return np.array(ids, dtype=np.int64)


def runs_with(*ids: int, policy: EvictionPolicy = EvictionPolicy.LRU) -> PageRuns:
    runs = PageRuns(64, 1, EVICTION_POLICIES[policy])
    for page in ids:
        runs.append(0, page, 0.0)
    return runs


def num_pages(concerned: list[HintedPages]) -> int:
    return sum(len(each.pages) for each in concerned)


def going(runs: PageRuns, now_s: float) -> list[int]:
    """Take all pages out, in the order in which they go."""
    order = []
    while oldest := runs.oldest(0, now_s, 1):
        runs.remove(0, oldest[0])
        runs.check()
        order += oldest
    return order


def test_a_chain_goes_tail_first_and_as_a_whole() -> None:
    runs = runs_with(1, 2, 3, 4)
    runs.use(0, pages(3, 1, 2), A, Idle(1.0), 1.0)
    assert going(runs, 2.0) == [4, 2, 1, 3]


def test_ended_sessions_go_first_but_for_what_others_have_used() -> None:
    runs = runs_with(1, 2, 3, 4, 5)
    runs.use(0, pages(1, 2), B, Idle(1.0), 1.0)
    runs.use(0, pages(1, 3, 4), A, Idle(2.0), 2.0)
    assert num_pages(runs.retain(A, Over(), 3.0)) == 2
    assert runs.goes_before_all(4)
    assert not runs.goes_before_all(1)
    assert going(runs, 3.0) == [4, 3, 5, 2, 1]


def test_what_a_later_user_shares_is_its_formers_no_more() -> None:
    runs = runs_with(1, 2)
    runs.use(0, pages(1, 2), A, Idle(1.0), 1.0)
    runs.use(0, pages(1), B, Idle(2.0), 2.0)
    assert num_pages(runs.retain(B, Over(), 3.0)) == 0
    assert num_pages(runs.retain(A, Over(), 3.0)) == 1
    assert not runs.goes_before_all(1)
    assert num_pages(runs.retain(SEVERAL_USERS, Over(), 3.0)) == 0


def test_heads_below_which_others_share_pages_are_shared() -> None:
    runs = runs_with(1, 2, 3)
    runs.use(0, pages(2), B, Idle(1.0), 1.0)
    runs.use(0, pages(1, 2, 3), A, Idle(2.0), 2.0)
    assert num_pages(runs.retain(A, Over(), 3.0)) == 1


def test_a_pause_demotes_and_its_end_brings_back() -> None:
    runs = runs_with(1, 2)
    runs.use(0, pages(1), A, Idle(100.0), 100.0)
    runs.use(0, pages(2), B, Idle(90.0), 90.0)
    runs.retain(A, Away(160.0), 100.0)
    assert runs.oldest(0, 100.0, 1) == [1]
    assert runs.oldest(0, 124.0, 1) == [1], "counts as used at 88"
    assert runs.oldest(0, 126.0, 1) == [2], "counts as used at 92"


def test_kept_pages_go_last_and_are_never_held_for_ever() -> None:
    runs = runs_with(1, 2, 3)
    runs.use(0, pages(1), A, Idle(1.0), 1.0)
    runs.retain(A, Kept(50.0), 1.0)
    runs.use(0, pages(2), B, Idle(40.0), 40.0)
    assert going(runs, 40.0) == [3, 2, 1]


def test_what_a_kept_or_returning_session_shares_stays_as_long_as_its_own() -> None:
    for standing in (Kept(50.0), Away(40.0)):
        runs = runs_with(1, 2, 3)
        runs.use(0, pages(1), B, Idle(1.0), 1.0)
        runs.use(0, pages(1, 2), A, Idle(10.0), 10.0)
        runs.retain(A, standing, 10.0)
        runs.use(0, pages(3), B, Idle(30.0), 30.0)
        assert going(runs, 41.0) == [3, 2, 1]


def test_a_pause_does_not_demote_what_others_use() -> None:
    runs = runs_with(1, 2, 3)
    runs.use(0, pages(1), B, Idle(1.0), 1.0)
    runs.use(0, pages(1, 2), A, Idle(10.0), 10.0)
    runs.retain(A, Away(100.0), 10.0)
    assert going(runs, 11.0) == [2, 3, 1]


def test_the_end_of_a_use_counts_as_a_use() -> None:
    runs = runs_with(1, 2, 3)
    runs.use(0, pages(1, 2), A, InUse(1.0), 1.0)
    runs.use(0, pages(3), B, Idle(50.0), 50.0)
    runs.rest(A, 60.0)
    assert going(runs, 61.0) == [3, 2, 1]


def test_what_a_user_was_to_bring_is_its_own_and_goes_before_what_it_goes_on_from() -> None:
    runs = runs_with(1)
    runs.use(0, pages(1), A, InUse(1.0), 1.0)
    runs.append(0, 3, 2.0, Coming(A, 1.0))
    runs.append(0, 2, 2.0, Coming(A, 1.0))
    runs.append(0, 4, 3.0, Coming(A, 1.0))
    assert num_pages(runs.retain(A, Kept(9.0), 4.0)) == 4
    runs = runs_with(1)
    runs.use(0, pages(1), A, InUse(1.0), 1.0)
    runs.append(0, 3, 2.0, Coming(A, 1.0))
    runs.append(0, 2, 2.0, Coming(A, 1.0))
    runs.append(0, 4, 3.0, Coming(A, 1.0))
    assert going(runs, 9.0) == [4, 3, 2, 1]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (EvictionPolicy.LRU, [2, 1, 3]),
        (EvictionPolicy.FIFO, [1, 2, 3]),
        (EvictionPolicy.LFU, [2, 3, 1]),
        (EvictionPolicy.SLRU, [2, 3, 1]),
        (EvictionPolicy.MRU, [3, 1, 2]),
        (EvictionPolicy.FILO, [3, 2, 1]),
    ],
)
def test_policies_see_the_history_of_runs(policy: EvictionPolicy, expected: list[int]) -> None:
    runs = PageRuns(8, 1, EVICTION_POLICIES[policy])
    for page in (1, 2, 3):
        runs.append(0, page, float(page))
    for now_s, user in ((4.0, A), (5.0, A)):
        runs.use(0, pages(1), user, Idle(now_s), now_s)
    runs.use(0, pages(3), B, Idle(6.0), 6.0)
    assert going(runs, 7.0) == expected


@pytest.mark.parametrize("policy", sorted(EvictionPolicy))
def test_a_chain_that_goes_on_loses_its_tail_before_its_head(policy: EvictionPolicy) -> None:
    runs = PageRuns(8, 1, EVICTION_POLICIES[policy])
    for page in (1, 2):
        runs.append(0, page, 0.0)
    runs.use(0, pages(1, 2), A, Idle(0.0), 0.0)
    # Its session goes on: with a page of the prompt, and with one of the answer.
    runs.use(0, pages(1, 2), A, InUse(1.0), 1.0, goes_on_s=1.0)
    runs.append(0, 3, 2.0, Coming(A, 1.0))
    assert going(runs, 2.0) == [3, 2, 1]
    runs = PageRuns(8, 1, EVICTION_POLICIES[policy])
    for page in (1, 2):
        runs.append(0, page, 0.0)
    runs.use(0, pages(1, 2), A, Idle(0.0), 0.0)
    runs.use(0, pages(1, 2), A, InUse(1.0), 1.0, goes_on_s=1.0)
    runs.append(0, 3, 2.0, Coming(A, 1.0))
    runs.append(0, 4, 3.0)
    runs.use(0, pages(3, 4), A, Idle(4.0), 4.0)
    runs.rest(A, 4.0)
    assert going(runs, 5.0) == [4, 3, 2, 1]


def test_a_head_that_others_go_on_from_makes_nobody_elses_tail_newer() -> None:
    runs = PageRuns(8, 1, EVICTION_POLICIES[EvictionPolicy.FIFO])
    for page in (1, 2):
        runs.append(0, page, 0.0)
    runs.use(0, pages(1, 2), A, Idle(0.0), 0.0)
    runs.append(0, 3, 1.0)
    runs.use(0, pages(1), B, InUse(2.0), 2.0, goes_on_s=2.0)
    # All of it is there: it goes in the turn in which it came.
    runs.use(0, pages(1, 2), A, InUse(3.0), 3.0)
    assert going(runs, 4.0) == [2, 3, 1]


@pytest.mark.parametrize(
    "policy",
    [EvictionPolicy.LRU, EvictionPolicy.MRU, EvictionPolicy.FIFO, EvictionPolicy.FILO],
)
def test_what_is_kept_goes_last_whichever_use_goes_first(policy: EvictionPolicy) -> None:
    runs = PageRuns(8, 1, EVICTION_POLICIES[policy])
    for page in (1, 2, 3):
        runs.append(0, page, float(page))
        runs.use(0, pages(page), UserId(page), Idle(float(page)), float(page))
    runs.retain(UserId(2), Kept(9.0), 4.0)
    assert going(runs, 5.0)[-1] == 2


@pytest.mark.parametrize("policy", sorted(EvictionPolicy))
def test_what_is_over_goes_first_under_every_policy(policy: EvictionPolicy) -> None:
    runs = PageRuns(8, 1, EVICTION_POLICIES[policy])
    for page in (1, 2, 3):
        runs.append(0, page, float(page))
        runs.use(0, pages(page), UserId(page), Idle(float(page)), float(page))
    runs.retain(UserId(2), Over(), 4.0)
    assert going(runs, 5.0)[0] == 2


def test_pages_that_come_back_are_as_new() -> None:
    runs = runs_with(1, 2, 3)
    runs.remove(0, 1)
    runs.append(0, 1, 0.0)
    assert going(runs, 1.0) == [2, 3, 1]


def test_pages_are_read_newest_first_as_they_were() -> None:
    runs = runs_with(1, 2, 3, 4)
    runs.use(0, pages(2, 3), A, Idle(1.0), 1.0)
    walk = runs.newest_first()
    first = next(walk)
    runs.use(0, pages(4), A, Idle(2.0), 2.0)
    runs.remove(0, 1)
    assert [first, *walk] == [2, 3, 4, 1]


def test_check_finds_a_page_that_is_counted_and_gone() -> None:
    runs = runs_with(1, 2)
    runs.check()
    runs._run_of[1] = -1
    with pytest.raises(AccountingError):
        runs.check()


@pytest.mark.parametrize("standing", [Kept(9.0), Away(9.0), Over()])
def test_hints_leave_the_pages_of_a_chain_in_order(standing: Standing) -> None:
    runs = runs_with(0, 1, 2, 3)
    runs.use(0, pages(0, 1), A, InUse(1.0), 1.0)
    runs.use(0, pages(2, 3), A, Idle(2.0), 2.0)
    runs.rest(A, 2.0)
    for now_s in (2.0, 3.0):
        runs.retain(A, standing, now_s)
        runs.rest(A, now_s)
    assert going(runs, 3.0) == [3, 2, 1, 0]


def test_a_user_that_has_ended_and_goes_on_gets_its_pages_back_from_readers() -> None:
    runs = runs_with(1, 2, 3)
    runs.use(0, pages(1, 2), A, Idle(1.0), 1.0)
    runs.retain(A, Over(), 2.0)
    for page in (1, 2):
        runs.set_aside(0, page)
    runs.begin_use(A, 3.0)
    for page in (2, 1):
        runs.put_back(0, page, 4.0)
    assert going(runs, 5.0) == [3, 2, 1]


def test_of_a_user_that_has_ended_and_goes_on_shared_heads_stay_behind_its_tails() -> None:
    runs = runs_with(1, 2, 3)
    runs.use(0, pages(1), B, Idle(1.0), 1.0)
    runs.use(0, pages(1, 2), A, Idle(2.0), 2.0)
    runs.retain(A, Over(), 3.0)
    runs.use(0, pages(3), B, Idle(4.0), 4.0)
    runs.rest(A, 5.0)
    assert going(runs, 6.0) == [3, 2, 1]


@pytest.mark.parametrize("is_shared", [False, True])
def test_the_end_of_a_keep_leaves_alone_what_the_next_request_has_in_use(is_shared: bool) -> None:
    runs = runs_with(1, 2)
    if is_shared:
        runs.use(0, pages(1), B, Idle(0.0), 0.0)
    runs.use(0, pages(1), A, Idle(1.0), 1.0)
    runs.retain(A, Kept(60.0), 1.0)
    runs.use(0, pages(2), B, Idle(5.0), 5.0)
    runs.use(0, pages(1), A, InUse(9.0), 9.0)
    runs.retain(A, Idle(1.0), 9.0)
    assert going(runs, 9.0) == [2, 1]


def test_equal_numbers_next_to_each_other_are_one_stretch() -> None:
    numbers = np.array([3, 3, 5, 3, -1, -1], dtype=np.intc)
    assert stretches(numbers) == [(3, 0, 2), (5, 2, 3), (3, 3, 4), (-1, 4, 6)]
    assert stretches(numbers[:1]) == [(3, 0, 1)]
    assert stretches(numbers[:0]) == []
