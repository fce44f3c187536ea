"""Who waits leaves room for other tenants, whatever it asks for."""

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydix.runtime.messages.client import FailureKind
from raydix.runtime.scheduler.life.waiting_room import has_room, refuse_for_room


def may_wait(num_waiting: int, most: int, own: int | None, going_on: int = 0) -> bool:
    num_of_tenant: Callable[[], int] | None = None if own is None else lambda: own
    failure = refuse_for_room(
        num_waiting,
        most,
        num_of_tenant,
        what="requests",
        bound="it",
        num_going_on=going_on,
    )
    assert failure is None or failure.kind is FailureKind.OVERLOADED
    is_taken = has_room(num_waiting, most, num_of_tenant, going_on)
    assert is_taken is (failure is None)
    return is_taken


@pytest.mark.parametrize(
    ("num_waiting", "own", "expected"),
    [(0, 0, True), (3, 3, True), (4, 4, False), (4, 0, True), (7, 0, True), (7, 1, False)],
)
def test_a_tenant_has_as_many_as_there_are_places_left(
    num_waiting: int, own: int, expected: bool
) -> None:
    assert may_wait(num_waiting, 8, own) is expected


def test_who_is_no_tenant_may_have_all_places_and_no_more() -> None:
    assert [may_wait(number, 3, None) for number in range(5)] == [True] * 3 + [False] * 2


@given(st.integers(1, 40), st.lists(st.integers(0, 5), max_size=120))
def test_however_many_a_few_ask_for_the_next_tenant_finds_room(
    most: int, askers: list[int]
) -> None:
    waiting: Counter[int] = Counter()
    for tenant in askers:
        if may_wait(waiting.total(), most, waiting[tenant]):
            waiting[tenant] += 1
    assert waiting.total() <= most
    # Each of those who came took at most a half of what the others had left.
    num_present = sum(number > 0 for number in waiting.values())
    if most >= 2**num_present:
        assert may_wait(waiting.total(), most, 0)


@pytest.mark.parametrize(
    ("own", "expected"), [(0, True), (7, True), (8, False), (20, False), (None, False)]
)
def test_what_goes_on_counts_for_its_tenant_and_takes_no_place_from_others(
    own: int | None, expected: bool
) -> None:
    assert may_wait(20, 8, own, going_on=20) is expected


@given(
    st.integers(1, 40),
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=120),
)
def test_however_much_of_a_few_goes_on_the_next_tenant_finds_room(
    most: int, askers: list[tuple[int, bool]]
) -> None:
    new: Counter[int] = Counter()
    going_on: Counter[int] = Counter()
    for tenant, goes_on in askers:
        num_waiting = new.total() + going_on.total()
        own = new[tenant] + going_on[tenant]
        if goes_on:
            going_on[tenant] += 1
        elif may_wait(num_waiting, most, own, going_on.total()):
            new[tenant] += 1
    assert new.total() <= most
    if most >= 2 ** sum(number > 0 for number in new.values()):
        assert may_wait(new.total() + going_on.total(), most, 0, going_on.total())
