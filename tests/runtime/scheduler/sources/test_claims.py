"""Claims of room in L2 add up, whatever is claimed, narrowed and ended."""

import itertools
import random

import pytest

from raydix.errors import AccountingError
from raydix.ids import RequestId
from raydix.runtime.scheduler.sources.claims import Claims

A, B = RequestId("a"), RequestId("b")


def pages(*numbers: int) -> list[bytes]:
    """Some pages, by number."""
    return [bytes([number]) * 16 for number in numbers]


@pytest.mark.parametrize("seed", range(20))
def test_claims_agree_with_sets_of_pages(seed: int) -> None:
    draw = random.Random(seed)
    claims, model = Claims(), dict[RequestId, set[int]]()
    claims.set_room(12)
    for _ in range(200):
        name = RequestId(draw.choice("abcd"))
        wanted = set(draw.sample(range(16), draw.randrange(8)))
        claims.put(name, pages(*wanted))
        model[name] = wanted
        claimed = set().union(*model.values())
        asked = set(draw.sample(range(16), 3))

        claims.check()
        assert claims.num_pages == len(claimed)
        assert claims.names == {each for each, of_it in model.items() if of_it}
        assert claims.has_room(pages(*asked)) == (asked <= claimed or len(claimed | asked) <= 12)


def test_room_comes_free_when_a_claim_ends_or_narrows_and_when_there_is_more() -> None:
    claims = Claims()
    claims.set_room(4)
    claims.put(A, pages(1, 2))
    claims.put(B, pages(1))
    times = [claims.num_times_freed]
    for act in (
        lambda: claims.put(A, pages(1)),
        lambda: claims.put(B, ()),
        lambda: claims.set_room(5),
    ):
        act()
        times.append(claims.num_times_freed)
    assert all(later == earlier + 1 for earlier, later in itertools.pairwise(times))
    claims.put(B, pages(7))
    claims.set_room(3)
    assert claims.num_times_freed == times[-1], "a new claim and less room free nothing"


def test_check_finds_claims_that_do_not_add_up() -> None:
    claims = Claims()
    claims.put(A, pages(1, 2))
    claims._num_claims.popitem()
    with pytest.raises(AccountingError):
        claims.check()
