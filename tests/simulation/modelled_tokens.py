"""What the modelled network makes of tokens: hashes of prefixes, and the tokens that follow."""

import zlib

VOCABULARY = 7


class WrongHit(AssertionError):
    """A rank read keys and values that are not those of its request's tokens."""


def prefix_hashes(token_ids: list[int], cache_salt: str | None = None) -> list[int]:
    """The modelled keys and values: entry i stands for tokens [0, i] under this salt."""
    hashes: list[int] = []
    value = 0 if cache_salt is None else zlib.crc32(cache_salt.encode())
    for token in token_ids:
        value = hash((value, token))
        hashes.append(value)
    return hashes


def kv_of(prefix_hash: int, group: int) -> int:
    """The modelled keys and values of the last token of a prefix in one KV group."""
    return hash((prefix_hash, group))


def next_token(prefix_hash: int) -> int:
    """The modelled greedy choice after a prefix."""
    return prefix_hash % VOCABULARY
