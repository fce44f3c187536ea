"""Pages that are to come are one user's each, and no more than are worth it."""

import pytest

from raydix.errors import AccountingError
from raydix.ids import UserId
from raydix.runtime.cache.host import coming_pages
from raydix.runtime.cache.host.coming_pages import Coming, ComingPages
from tests.runtime.cache.host.index_pages import key

A, B = UserId(1), UserId(2)
KEYS = [key(name) for name in range(4)]


def test_a_page_is_brought_by_the_last_that_lacked_it() -> None:
    coming = ComingPages()
    coming.note(KEYS[:3], Coming(A, 1.0))
    coming.note(KEYS[1:], Coming(B, 2.0))
    coming.check()
    assert [coming.find(each) for each in KEYS] == [Coming(A, 1.0), *[Coming(B, 2.0)] * 3]
    coming.forget(A)
    assert [coming.find(each) for each in KEYS] == [None, *[Coming(B, 2.0)] * 3]
    coming.forget(B)
    assert len(coming) == 0


def test_users_that_never_end_and_lack_the_same_pages_take_no_more_room_than_one() -> None:
    coming = ComingPages()
    for user in range(1, 1000):
        coming.note(KEYS, Coming(UserId(user), float(user)))
        coming.check()
    assert len(coming) == len(KEYS)
    assert len(coming._keys) == 1


def test_the_first_users_make_way_where_there_are_too_many_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coming_pages, "_MAX_PAGES", 3)
    coming = ComingPages()
    coming.note(KEYS[:2], Coming(A, 1.0))
    coming.note(KEYS[2:], Coming(B, 2.0))
    coming.check()
    assert [coming.find(each) for each in KEYS] == [None, None, *[Coming(B, 2.0)] * 2]


def test_a_user_that_came_before_is_the_last_to_make_way_once_it_comes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coming_pages, "_MAX_PAGES", 3)
    coming = ComingPages()
    coming.note(KEYS[:1], Coming(A, 1.0))
    coming.note(KEYS[1:2], Coming(B, 2.0))
    coming.note([KEYS[0], *KEYS[2:]], Coming(A, 3.0))
    coming.check()
    assert [coming.find(each) for each in KEYS] == [Coming(A, 3.0), None, *[Coming(A, 3.0)] * 2]


def test_check_finds_a_page_of_two_users() -> None:
    coming = ComingPages()
    coming.note(KEYS[:1], Coming(A, 1.0))
    coming._keys[B] = {KEYS[1]}
    with pytest.raises(AccountingError):
        coming.check()
