"""The page pool: conservation, quarantine and holds."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from raydix.errors import AccountingError
from raydix.runtime.cache.page_pool import PagePool
from raydix.runtime.messages.arrays import Int32Array, int32_array
from tests.runtime.cache.model_page_pool import PoolModel


def take(pool: PagePool, num_pages: int) -> Int32Array:
    page_ids = pool.allocate(num_pages)
    assert page_ids is not None
    return page_ids


def test_the_padding_page_is_never_handed_out() -> None:
    pool = PagePool(8)

    assert sorted(take(pool, 8).tolist()) == list(range(1, 9))


def test_a_batch_takes_distinct_pages_in_order() -> None:
    pool = PagePool(8)

    batch = [take(pool, num_pages).tolist() for num_pages in (3, 0, 1, 4)]

    assert batch == [[1, 2, 3], [], [4], [5, 6, 7, 8]]


def test_asking_for_more_than_is_free_takes_nothing() -> None:
    pool = PagePool(4)
    take(pool, 3)

    assert pool.allocate(2) is None
    assert (pool.num_free, pool.num_used) == (1, 3)
    pool.check()


def test_a_released_page_waits_for_the_steps_sent_before_its_release() -> None:
    pool = PagePool(4)
    page_ids = take(pool, 4)

    pool.release(page_ids[:2], after_step=7)
    pool.release(page_ids[2:], after_step=8)

    pool.settle(6)
    assert (pool.num_free, pool.num_quarantined) == (0, 4)
    pool.settle(7)
    assert (pool.num_free, pool.num_quarantined) == (2, 2)
    assert set(take(pool, 2).tolist()) == set(page_ids[:2].tolist())
    pool.settle(8)
    assert (pool.num_free, pool.num_quarantined, pool.num_used) == (2, 0, 2)


def test_a_released_array_stays_the_callers_to_reuse() -> None:
    pool = PagePool(2)
    page_ids = take(pool, 2)
    pool.release(page_ids, after_step=1)

    page_ids[:] = 0
    pool.settle(1)

    assert sorted(take(pool, 2).tolist()) == [1, 2]


def test_releases_may_name_their_steps_in_any_order() -> None:
    pool = PagePool(2)
    page_ids = take(pool, 2)
    pool.release(page_ids[:1], after_step=9)
    pool.release(page_ids[1:], after_step=3)

    pool.settle(5)

    assert take(pool, 1).tolist() == page_ids[1:].tolist()


def test_a_page_released_after_the_last_acknowledged_step_is_free_at_once() -> None:
    pool = PagePool(2)
    pool.settle(5)

    pool.release(take(pool, 2), after_step=5)

    assert (pool.num_free, pool.num_quarantined) == (2, 0)


def test_an_older_acknowledgement_changes_nothing() -> None:
    pool = PagePool(2)
    pool.settle(5)
    pool.settle(3)

    pool.release(take(pool, 2), after_step=4)

    assert pool.num_free == 2


def test_a_held_page_is_not_free_before_its_last_hold_ends() -> None:
    pool = PagePool(2)
    page_ids = take(pool, 2)
    pool.hold(page_ids[:1])
    pool.hold(page_ids[:1])
    pool.release(page_ids, after_step=1)
    pool.settle(1)

    assert (pool.num_free, pool.num_quarantined) == (1, 1)
    pool.check()
    pool.unhold(page_ids[:1])
    assert (pool.num_free, pool.num_held) == (1, 1)
    pool.unhold(page_ids[:1])
    assert (pool.num_free, pool.num_held) == (2, 0)
    pool.check()


def test_the_end_of_a_hold_does_not_end_the_quarantine() -> None:
    pool = PagePool(1)
    page_ids = take(pool, 1)
    pool.hold(page_ids)
    pool.release(page_ids, after_step=4)

    pool.unhold(page_ids)

    assert (pool.num_free, pool.num_quarantined) == (0, 1)
    pool.settle(4)
    assert pool.num_free == 1


def test_a_double_release_is_an_error_and_changes_nothing() -> None:
    pool = PagePool(4)
    page_ids = take(pool, 3)
    pool.release(page_ids[:1], after_step=0)

    with pytest.raises(AccountingError, match="1: 'QUARANTINED'"):
        pool.release(page_ids, after_step=0)
    with pytest.raises(AccountingError, match="4: 'FREE'"):
        pool.release(int32_array([4]), after_step=0)
    assert (pool.num_free, pool.num_used, pool.num_quarantined) == (1, 2, 1)
    pool.check()


def test_a_page_that_two_segments_share_is_released_once() -> None:
    pool = PagePool(4)
    first = take(pool, 2)

    with pytest.raises(AccountingError, match="twice"):
        pool.release(np.concatenate([first, first[1:]]), after_step=0)
    pool.release(np.unique(np.concatenate([first, first[1:]])), after_step=-1)

    assert pool.num_free == 4


@pytest.mark.parametrize("page_id", [0, -1, 5])
def test_pages_outside_the_pool_are_refused(page_id: int) -> None:
    pool = PagePool(4)
    take(pool, 4)

    with pytest.raises(AccountingError, match=r"outside 1\.\.4"):
        pool.release(int32_array([page_id]), after_step=0)
    with pytest.raises(AccountingError, match=r"outside 1\.\.4"):
        pool.hold(int32_array([page_id]))


def test_only_pages_in_use_can_be_held_and_only_held_ones_unheld() -> None:
    pool = PagePool(4)
    page_ids = take(pool, 2)

    with pytest.raises(AccountingError, match="not in use"):
        pool.hold(int32_array([4]))
    pool.hold(page_ids[:1])
    with pytest.raises(AccountingError, match="not held"):
        pool.unhold(page_ids)
    assert pool.num_held == 1
    pool.check()


def test_pages_freed_in_any_order_can_all_be_taken_again() -> None:
    pool = PagePool(1000)
    page_ids = take(pool, 1000)

    for chunk in np.array_split(np.random.default_rng(0).permutation(page_ids), 37):
        pool.release(chunk, after_step=-1)
    pool.check()

    assert sorted(take(pool, 1000).tolist()) == list(range(1, 1001))


@pytest.mark.parametrize("num_pages", [0, -3])
def test_an_empty_pool_is_refused(num_pages: int) -> None:
    with pytest.raises(ValueError, match="expected at least 1"):
        PagePool(num_pages)


def test_a_negative_allocation_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 0 or more"):
        PagePool(4).allocate(-1)


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("num_free", 3, "counts disagree"),
        ("num_quarantined", 1, "counts disagree"),
        ("_quarantine", [(0, 0, int32_array([1]))], "queue disagrees"),
        ("_free", int32_array([1, 1, 2, 3]), "free list"),
        ("_num_holds", np.ones(5, dtype=np.int32), "held"),
    ],
)
def test_check_finds_a_broken_invariant(attribute: str, value: object, message: str) -> None:
    pool = PagePool(4)
    setattr(pool, attribute, value)

    with pytest.raises(AccountingError, match=message):
        pool.check()


class PoolMachine(RuleBasedStateMachine):
    """Any order of allocations, releases, holds and acknowledgements, against plain sets."""

    NUM_PAGES = 24

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(self.NUM_PAGES)
        self.model = PoolModel(self.NUM_PAGES)
        self.sent_step = -1

    @rule(num_pages=st.integers(0, 12))
    def allocate(self, num_pages: int) -> None:
        page_ids = self.pool.allocate(num_pages)
        if page_ids is None:
            assert num_pages > len(self.model.free)
        else:
            assert len(set(page_ids.tolist())) == num_pages
            self.model.allocate(page_ids.tolist())

    @precondition(lambda self: self.model.used)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        page_ids = data.draw(st.lists(st.sampled_from(sorted(self.model.used)), unique=True))
        self.pool.release(int32_array(page_ids), after_step=self.sent_step)
        self.model.release(page_ids, self.sent_step)

    @precondition(lambda self: self.model.used)
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        page_ids = data.draw(st.lists(st.sampled_from(sorted(self.model.used)), unique=True))
        self.pool.hold(int32_array(page_ids))
        self.model.holds.update(page_ids)

    @precondition(lambda self: self.model.holds)
    @rule(data=st.data())
    def unhold(self, data: st.DataObject) -> None:
        page_ids = data.draw(st.lists(st.sampled_from(sorted(self.model.holds)), unique=True))
        self.pool.unhold(int32_array(page_ids))
        self.model.holds -= Counter(page_ids)  # drops pages that reach zero

    @rule()
    def send_step(self) -> None:
        self.sent_step += 1

    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        step = data.draw(st.integers(-1, self.sent_step))
        self.pool.settle(step)
        self.model.acknowledged_step = max(self.model.acknowledged_step, step)

    @precondition(lambda self: self.model.used != self.model.pages)
    @rule(data=st.data())
    def release_what_is_not_in_use(self, data: st.DataObject) -> None:
        page_id = data.draw(st.sampled_from(sorted(self.model.pages - self.model.used)))
        with pytest.raises(AccountingError):
            self.pool.release(
                int32_array([*sorted(self.model.used), page_id]), after_step=self.sent_step
            )

    @invariant()
    def counts_agree(self) -> None:
        self.pool.check()
        pool, model = self.pool, self.model
        assert (pool.num_free, pool.num_used) == (len(model.free), len(model.used))
        assert pool.num_quarantined == len(model.quarantined)
        assert pool.num_held == len(model.holds)
        assert pool.num_free + pool.num_used + pool.num_quarantined == pool.num_pages


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40)


@pytest.mark.parametrize("page_id", [-1, 0, 3, 9, 10**6])
def test_a_free_list_that_names_no_free_page_or_one_twice_is_found(page_id: int) -> None:
    pool = PagePool(8)
    pool._free[0] = page_id
    with pytest.raises(AccountingError, match="the free list holds pages twice or pages that are"):
        pool.check()
