"""The newest link of a client counts, and no other client's."""

from raydix.ids import ClientId
from raydix.runtime.scheduler.newest_links import NewestLinks

FIRST, SECOND, THIRD = ClientId("a#1"), ClientId("a#2"), ClientId("a#3")


def test_a_client_that_comes_again_gives_up_its_former_link() -> None:
    links = NewestLinks()
    assert links.open("a", 1, FIRST) is None
    assert links.open("a", 2, SECOND) == FIRST
    links.close("a", FIRST)
    assert links.open("a", 3, THIRD) == SECOND


def test_a_link_that_comes_after_a_newer_one_is_given_up_itself() -> None:
    links = NewestLinks()
    links.open("a", 2, SECOND)
    assert links.open("a", 1, FIRST) == FIRST
    assert links.open("a", 3, THIRD) == SECOND


def test_another_client_gives_up_nothing() -> None:
    links = NewestLinks()
    links.open("a", 1, FIRST)
    assert links.open("b", 2, ClientId("b#4")) is None


def test_a_client_whose_link_has_closed_has_none_to_give_up() -> None:
    links = NewestLinks()
    links.open("a", 1, FIRST)
    links.close("a", FIRST)
    assert links.open("a", 2, SECOND) is None
