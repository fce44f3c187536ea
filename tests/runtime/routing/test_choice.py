"""The place where a request and those behind it wait least."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydix.runtime.routing.choice import Place, choose_place

_seconds = st.floats(0, 100, allow_nan=False)


def place(wait_s: float = 0.0, own_s: float = 0.0, caused_s: float = 0.0, **ties: int) -> Place:
    """A place, whose ties are `preferred`, `near` and `requests`."""
    return Place(
        wait_s=wait_s,
        own_s=own_s,
        caused_s=caused_s,
        is_preferred=bool(ties.get("preferred", 0)),
        num_near_pages=ties.get("near", 0),
        num_requests=ties.get("requests", 0),
    )


@given(st.lists(st.builds(place, _seconds, _seconds, _seconds), min_size=1))
def test_no_other_place_costs_less(places: list[Place]) -> None:
    chosen = places[choose_place(places)]

    least = min(each.first_token_s + each.caused_s for each in places)
    assert chosen.first_token_s + chosen.caused_s <= least + 1e-4


@given(st.lists(st.builds(place, _seconds, _seconds), min_size=1), _seconds)
def test_waiting_longer_never_attracts(places: list[Place], more_s: float) -> None:
    chosen = choose_place(places)
    others = [
        each if index == chosen else place(each.wait_s + more_s, each.own_s)
        for index, each in enumerate(places)
    ]

    assert choose_place(others) == chosen


def test_ties_go_to_the_session_then_the_prefix_then_the_emptiest() -> None:
    assert choose_place([place(near=9), place(preferred=1, requests=7)]) == 1
    assert choose_place([place(requests=0), place(near=1, requests=7)]) == 1
    assert choose_place([place(requests=2), place(requests=1)]) == 1
    assert choose_place([place(), place()]) == 0


def test_a_copy_is_made_once_waiting_costs_as_much() -> None:
    def holder(wait_s: float) -> Place:
        return place(wait_s=wait_s, own_s=0.1)

    copy = place(own_s=1.0, caused_s=2.0)

    assert choose_place([holder(2.8), copy]) == 0
    assert choose_place([holder(3.0), copy]) == 1


def test_no_place_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        choose_place([])
