import pytest

from raydix.errors import AccountingError
from raydix.runtime.cache.page_pool import PagePool
from raydix.runtime.cache.page_pools import PageIds, PagePools
from raydix.runtime.messages.arrays import int32_array


def num_used(pools: PagePools) -> tuple[int, ...]:
    return pools.count(lambda pool: pool.num_used)


def num_free(pools: PagePools) -> tuple[int, ...]:
    return pools.count(lambda pool: pool.num_free)


def take(pools: PagePools, num_pages: int) -> PageIds:
    taken = pools.allocate((num_pages,) * pools.num_groups)
    assert taken is not None
    return taken


def test_a_run_is_taken_from_every_group_or_from_none() -> None:
    pools = PagePools((8, 3))

    assert [len(ids) for ids in take(pools, 2)] == [2, 2]
    assert pools.allocate((2, 2)) is None
    assert num_used(pools) == (2, 2)
    assert num_free(pools) == (6, 1)


def test_each_group_gives_as_many_pages_as_it_is_asked_for() -> None:
    pools = PagePools((8, 3))

    taken = pools.allocate((5, 0))

    assert taken is not None
    assert [len(ids) for ids in taken] == [5, 0]
    assert pools.allocate((1, 4)) is None
    assert num_used(pools) == (5, 0)


def test_a_released_run_is_free_once_its_step_is_acknowledged() -> None:
    pools = PagePools((4, 4))
    pages = take(pools, 3)

    pools.release(pages, after_step=7)

    assert num_free(pools) == (1, 1)
    assert pools.count(lambda pool: pool.num_quarantined) == (3, 3)
    pools.settle(7)
    assert num_free(pools) == (4, 4)
    pools.check()


def test_what_a_group_does_not_hold_is_passed_over() -> None:
    pools = PagePools((4, 4))
    full, window = take(pools, 3)
    behind = (full, int32_array((0, *window[1:])))

    pools.hold(behind)
    pools.release(behind, after_step=0)

    assert num_used(pools) == (0, 1)
    pools.settle(0)
    assert pools.count(lambda pool: pool.num_held) == (3, 2)
    pools.unhold(behind)
    assert num_free(pools) == (4, 3)
    pools.check()


def test_a_page_that_is_not_in_use_is_refused_in_any_group() -> None:
    pools = PagePools((4, 4))
    full, _ = take(pools, 1)

    with pytest.raises(AccountingError, match="not in use"):
        pools.release((full, int32_array((4,))), after_step=0)


def test_one_group_counts_as_a_pool_alone() -> None:
    pools, pool = PagePools((5,)), PagePool(5)

    assert take(pools, 2)[0].tolist() == list(pool.allocate(2))  # type: ignore[arg-type]
    assert num_free(pools) == (pool.num_free,) == (3,)
