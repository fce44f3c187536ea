from collections.abc import Callable, Iterable

from hypothesis import given
from hypothesis import strategies as st

from raydix.runtime.cache.page_key import KEY_BYTES, MIRROR_KEY_BYTES, ChainKeys, split_keys
from raydix.runtime.messages.mirror import MirrorUpdate
from raydix.runtime.scheduler.sources.mirror import EitherHas, Mirror
from tests.runtime.scheduler.keys import mirror_keys

NUM_PAGES = 8
KEYS = b"".join(bytes([page]) * KEY_BYTES for page in range(NUM_PAGES))
CHAIN = ChainKeys(KEYS)
pages = st.sets(st.integers(0, NUM_PAGES - 1))


def mirror_of(held: set[int]) -> Mirror:
    mirror = Mirror(1)
    keys = b"".join(KEYS[page * KEY_BYTES : (page + 1) * KEY_BYTES] for page in sorted(held))
    mirror.follow(MirrorUpdate(ready=mirror_keys(keys)))
    return mirror


@given(own=pages, other=pages, start=st.integers(0, NUM_PAGES), stop=st.integers(0, NUM_PAGES))
def test_either_has_what_one_of_two_mirrors_has(
    own: set[int], other: set[int], start: int, stop: int
) -> None:
    both, joined = EitherHas(mirror_of(own), mirror_of(other)), mirror_of(own | other)

    start, stop = sorted((start, stop))
    num_resident = next((page for page in range(start, stop) if page not in own | other), stop)
    for known in (both, joined):
        assert known.count_resident(0, CHAIN, start, stop) == num_resident - start
    has = [both.has_page(0, CHAIN, page) for page in range(NUM_PAGES)]
    assert has == [page in own | other for page in range(NUM_PAGES)]


@given(held=pages, asked=pages)
def test_lacking_pages_are_counted_out_of_those_that_are_asked_about(
    held: set[int], asked: set[int]
) -> None:
    assert mirror_of(held).count_lacking(0, ChainKeys(KEYS), sorted(asked)) == len(asked - held)


@given(runs=st.lists(st.tuples(st.integers(0, NUM_PAGES), st.integers(0, NUM_PAGES)).map(sorted)))
def test_short_keys_are_the_same_in_whatever_order_they_are_asked_for(
    runs: list[list[int]],
) -> None:
    chain, shorts = ChainKeys(KEYS), split_keys(mirror_keys(KEYS), MIRROR_KEY_BYTES)

    for start, stop in runs:
        assert chain.shorts(start, stop) == shorts[start:stop]
    assert [chain.short(page) for page in range(NUM_PAGES + 1)] == [*shorts, b""]


class CountedKeys(ChainKeys):
    """Counts the pages whose short keys are looked at."""

    num_looks = 0

    def short(self, page: int) -> bytes:
        self.num_looks += 1
        return super().short(page)

    def shorts(self, start: int, stop: int) -> list[bytes]:
        self.num_looks += stop - start
        return super().shorts(start, stop)


def long_chain(num_pages: int) -> tuple[CountedKeys, Callable[[Iterable[int]], Mirror]]:
    """The keys of a chain, and what makes a mirror of some of its pages."""
    keys = b"".join(page.to_bytes(KEY_BYTES, "little") for page in range(num_pages))
    shorts = split_keys(mirror_keys(keys), MIRROR_KEY_BYTES)

    def make(held: Iterable[int]) -> Mirror:
        mirror = Mirror(1)
        mirror.follow(MirrorUpdate(ready=b"".join(shorts[page] for page in held)))
        return mirror

    return CountedKeys(keys), make


def test_of_a_chain_that_goes_on_nowhere_one_page_is_looked_at() -> None:
    keys, make = long_chain(4000)
    assert make(range(100, 4000)).count_resident(0, keys, 0, 4000) == 0
    assert keys.num_looks == 1


def test_as_many_pages_are_looked_at_as_are_there() -> None:
    keys, make = long_chain(4000)
    assert make(range(100)).count_resident(0, keys, 0, 4000) == 100
    assert keys.num_looks <= 3 * 100


def test_pages_that_two_nodes_have_in_turns_are_looked_at_a_few_times_each() -> None:
    keys, make = long_chain(4000)
    both = EitherHas(make(range(0, 4000, 2)), make(range(1, 4000, 2)))
    assert both.count_resident(0, keys, 0, 4000) == 4000
    assert keys.num_looks <= 4 * 4000
