from hypothesis import given
from hypothesis import strategies as st

from raydix.runtime.cache.page_key import KEY_BYTES
from raydix.runtime.messages.mirror import MirrorUpdate
from raydix.runtime.scheduler.sources.mirror import EitherHas, Mirror
from tests.runtime.scheduler.keys import mirror_keys

NUM_PAGES = 8
KEYS = b"".join(bytes([page]) * KEY_BYTES for page in range(NUM_PAGES))
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
    assert both.count_resident(0, KEYS, start, stop) == joined.count_resident(0, KEYS, start, stop)
    has = [both.has_page(0, KEYS, page) for page in range(NUM_PAGES)]
    assert has == [page in own | other for page in range(NUM_PAGES)]
