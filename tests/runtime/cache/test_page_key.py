"""Page keys: what makes two of them equal, and what does not."""

import hashlib
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydix.runtime.cache.page_key import KEY_BYTES, extend_keys, pack_tokens, root_key, split_keys


def test_tokens_are_packed_as_little_endian_int32() -> None:
    expected = b"\x01\x00\x00\x00\x00\x01\x00\x00"

    assert pack_tokens([1, 256]) == expected
    assert pack_tokens(np.array([1, 256], dtype=np.int32)) == expected
    assert pack_tokens(np.array([1, 256], dtype=np.int64)) == expected
    assert pack_tokens([]) == b""


def test_a_key_is_the_digest_of_its_parent_and_its_page() -> None:
    parent = root_key()
    packed = pack_tokens(range(8))

    first, second = split_keys(extend_keys(parent, packed, 4))

    assert first == hashlib.sha256(parent + packed[:16]).digest()
    assert second == hashlib.sha256(first + packed[16:]).digest()


def test_a_partial_page_has_no_key() -> None:
    assert extend_keys(root_key(), pack_tokens(range(3)), 4) == b""
    assert len(extend_keys(root_key(), pack_tokens(range(11)), 4)) == 2 * KEY_BYTES


def test_identities_differ_wherever_their_salts_do() -> None:
    identities = [
        root_key(),
        root_key(cache_salt=""),
        root_key(cache_salt="s1"),
        root_key(cache_salt="s2"),
    ]

    assert all(first != second for first, second in combinations(identities, 2))
    assert {len(identity) for identity in identities} == {KEY_BYTES}


@pytest.mark.parametrize(
    ("cache_salt", "digest"), [(None, "6e0305487c5c3d9e"), ("tenant", "88ff83ded0198ba4")]
)
def test_identities_stay_as_they_are_for_what_storage_holds(
    cache_salt: str | None, digest: str
) -> None:
    assert root_key(cache_salt=cache_salt).hex().startswith(digest)


def test_the_identity_only_changes_where_the_chain_starts() -> None:
    packed = pack_tokens(range(8))
    salted = root_key(cache_salt="tenant")

    keys = extend_keys(salted, packed, 4)

    assert keys != extend_keys(root_key(), packed, 4)
    assert split_keys(keys)[1] == extend_keys(split_keys(keys)[0], packed[16:], 4)


def test_equal_pages_behind_different_prefixes_have_different_keys() -> None:
    page = [7, 7, 7, 7]

    first = split_keys(extend_keys(root_key(), pack_tokens([1, 2, 3, 4] + page), 4))
    second = split_keys(extend_keys(root_key(), pack_tokens([4, 3, 2, 1] + page), 4))

    assert first[1] != second[1]


@given(
    tokens=st.lists(st.integers(0, 2**31 - 1), max_size=60),
    page_size=st.sampled_from([1, 2, 4, 16]),
    num_first_pages=st.integers(0, 20),
)
def test_page_by_page_gives_the_same_keys_as_all_at_once(
    tokens: list[int], page_size: int, num_first_pages: int
) -> None:
    packed = pack_tokens(tokens)
    cut = num_first_pages * page_size * 4

    head = extend_keys(root_key(), packed[:cut], page_size)
    last = split_keys(head)[-1] if head else root_key()
    rest = extend_keys(last, packed[len(head) // KEY_BYTES * page_size * 4 :], page_size)

    assert head + rest == extend_keys(root_key(), packed, page_size)


@pytest.mark.parametrize("name", ["", "é", "a" * 300])
def test_any_text_can_be_a_salt(name: str) -> None:
    assert len(root_key(cache_salt=name)) == KEY_BYTES
