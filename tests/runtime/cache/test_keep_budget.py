"""Kept pages stay within the budget of their tenant, however many ask."""

from raydix.ids import TenantId, UserId
from raydix.runtime.cache.keep_budget import Keep, KeepBudget

A, B = TenantId(1), TenantId(2)


def keep(user: int, num_pages: int, tenant: TenantId = A, now_s: float = 0.0) -> Keep:
    return Keep(
        tenant=tenant,
        user=UserId(user),
        num_pages=num_pages,
        since_s=now_s,
        until_s=now_s + 10.0,
    )


def test_ten_thousand_keeps_leave_the_newest_that_fit() -> None:
    budget = KeepBudget(100)
    given_up = []
    for user in range(1, 10_001):
        given_up += budget.add(keep(user, 7))
        budget.check()
    assert [each.user for each in budget.keeps(0.0)] == list(range(9_987, 10_001))
    assert [each.user for each in given_up] == list(range(1, 9_987))


def test_tenants_have_budgets_of_their_own() -> None:
    budget = KeepBudget(10)
    assert not budget.add(keep(1, 10, A))
    assert not budget.add(keep(2, 10, B))
    assert [each.user for each in budget.add(keep(3, 10, B))] == [2]
    assert [each.user for each in budget.keeps(0.0)] == [1, 3]


def test_what_is_larger_than_the_budget_is_not_kept() -> None:
    budget = KeepBudget(10)
    budget.add(keep(1, 4))
    assert [each.user for each in budget.add(keep(2, 11))] == [1, 2]
    assert not budget.keeps(0.0)


def test_a_later_keep_of_a_session_replaces_its_former_one() -> None:
    budget = KeepBudget(10)
    budget.add(keep(1, 8))
    assert not budget.add(keep(1, 9))
    budget.forget(A, UserId(1))
    budget.forget(A, UserId(1))
    assert not budget.keeps(0.0)
    budget.check()


def test_a_keep_ends_by_its_age() -> None:
    budget = KeepBudget(10)
    budget.add(keep(1, 8))
    assert not budget.keeps(10.0)
    assert [each.user for each in budget.expire(10.0)] == [1]
    assert not budget.add(keep(2, 8, now_s=10.0)), "what has run out need not be given up"
    assert not budget.expire(19.9)


def test_keeps_of_a_hundred_thousand_tenants_take_no_room_once_they_have_run_out() -> None:
    budget = KeepBudget(10)
    for tenant in range(100_000):
        budget.expire(0.1 * tenant)
        budget.add(keep(1, 1, TenantId(tenant), now_s=0.1 * tenant))
    assert len(budget.keeps(0.0)) <= 101
    budget.check()


def test_a_session_that_asks_again_and_again_takes_no_more_room() -> None:
    budget = KeepBudget(10)
    for _ in range(10_000):
        budget.add(keep(1, 8))
    budget.check()
    budget.forget(A, UserId(1))
    budget.check()


def test_what_has_run_out_counts_as_kept_no_more_though_nobody_else_asks() -> None:
    budget = KeepBudget(10)
    budget.add(keep(1, 8))
    budget.expire(9.9)
    assert budget.num_pages == 8
    budget.expire(10.0)
    assert budget.num_pages == 0
