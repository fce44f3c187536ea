"""A chain has the keys of its tokens, however they are asked for."""

import pytest

from raydix.runtime.cache.page_key import extend_keys, pack_tokens, root_key
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.scheduler.request.chain import Chain

PAGE_SIZE = 4
TOKENS = list(range(14))
KEYS = extend_keys(root_key(), pack_tokens(TOKENS), PAGE_SIZE)


def chain_of(tokens: list[int]) -> Chain:
    return Chain(int32_array(tokens), cache_salt=None, page_size=PAGE_SIZE)


def test_keys_are_those_of_the_tokens() -> None:
    chain = chain_of(TOKENS)

    assert chain.num_prompt_pages == 3
    assert chain.key(1) == KEYS[32:64]
    assert chain.keys(3) == KEYS
    assert chain.keys(3, 1) == KEYS[32:]
    assert chain.short_keys([2, 0]) == [KEYS[64:80], KEYS[:16]]


def test_keys_that_are_hashed_in_steps_are_the_same() -> None:
    chain = chain_of(TOKENS)

    assert chain.extend_keys(3, 2) == 2
    assert chain.num_keys == 2
    assert chain.extend_keys(3, 2) == 1
    assert chain.extend_keys(3, 2) == 0
    assert chain.keys(3) == KEYS


def test_keys_that_are_adopted_are_gone_on_from() -> None:
    chain = chain_of(TOKENS)
    chain.adopt_keys(KEYS[:32])

    assert chain.keys(3) == KEYS


def test_keys_are_not_adopted_once_some_are_hashed() -> None:
    chain = chain_of(TOKENS)
    chain.extend_keys(1, 1)

    with pytest.raises(AssertionError, match="known already"):
        chain.adopt_keys(KEYS[:32])


def test_output_continues_the_prompt() -> None:
    chain = chain_of(TOKENS[:10])
    chain.append(int32_array(TOKENS[10:]))

    assert chain.num_prompt_pages == 2
    assert chain.token_ids().tolist() == TOKENS
    assert chain.packed_pages(1, 3) == pack_tokens(TOKENS[4:12])
    assert chain.keys(3) == KEYS
