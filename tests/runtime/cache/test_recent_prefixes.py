"""What is remembered of the prefixes that prompts had."""

import random

from raydix.runtime.cache.page_key import KEY_BYTES, extend_keys, pack_tokens, root_key
from raydix.runtime.cache.recent_prefixes import RecentPrefixes

PAGE_SIZE = 2


def keys_of(tokens: list[int]) -> bytes:
    return extend_keys(root_key(), pack_tokens(tokens), PAGE_SIZE)


def test_chains_share_the_pages_before_they_part() -> None:
    prefixes = RecentPrefixes(1024)
    assert prefixes.num_shared(keys_of([1] * 8)) == 0
    prefixes.meet(keys_of([1] * 8))
    assert prefixes.num_shared(keys_of([1] * 5 + [2] * 3)) == 2
    assert prefixes.num_shared(keys_of([2] * 8)) == 0


def test_a_prompt_shares_all_of_one_that_it_goes_on_from_and_of_one_that_goes_on_from_it() -> None:
    prefixes = RecentPrefixes(1024)
    prefixes.meet(keys_of([1] * 8))
    assert prefixes.num_shared(keys_of([1] * 12)) == 4
    assert prefixes.num_shared(keys_of([1] * 4)) == 2
    assert prefixes.num_shared(b"") == 0


def test_the_chain_that_is_most_like_it_counts() -> None:
    prefixes = RecentPrefixes(1024)
    for num_shared in (2, 6, 4):
        prefixes.meet(keys_of([1] * num_shared + [num_shared] * 8))
    assert prefixes.num_shared(keys_of([1] * 20)) == 3


def test_what_replaces_an_early_page_hides_nothing_behind_it() -> None:
    prefixes = RecentPrefixes(64)
    chain = keys_of([1] * 8)
    prefixes.meet(chain)
    first_place = int.from_bytes(chain[:8], "little") % 64
    other = first_place.to_bytes(8, "little") + bytes(KEY_BYTES - 8)
    prefixes.meet(other)
    assert prefixes.num_shared(chain[:KEY_BYTES]) == 0
    assert prefixes.num_shared(chain) == 4


def test_what_came_last_is_remembered_and_what_came_long_ago_is_not() -> None:
    prefixes = RecentPrefixes(1 << 12)
    draw = random.Random(0)
    chains = [keys_of([draw.randrange(1000) for _ in range(40)]) for _ in range(4000)]
    shared = []
    for chain in chains:
        prefixes.meet(chain)
    for chain in chains:
        shared.append(prefixes.num_shared(chain))
    assert shared[-1] == 20
    assert sum(shared[-20:]) > 0.9 * 20 * 20
    assert sum(shared[:2000]) < 0.01 * 20 * 2000
