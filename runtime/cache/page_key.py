"""Page keys: SHA-256 chains over packed tokens, starting from a request's identity.

Packed tokens are `bytes` of little-endian int32, everywhere in the cache.
"""

import hashlib
from collections.abc import Iterable
from typing import cast

import numpy as np

from raydix.ids import PageKey
from raydix.runtime.messages.arrays import Int32Array

TOKEN_BYTES = 4
KEY_BYTES = 32
MIRROR_KEY_BYTES = 16
"""The number of leading bytes by which a mirror tells keys apart."""
_IDENTITY_TAG = b"raydix-identity-v1"
_IDENTITY_END = b"lora\x00"
"""The end of each hashed identity: a field that no request has, kept so that what storage already
holds is found again.
"""


def pack_tokens(token_ids: Iterable[int] | Int32Array) -> bytes:
    """Token ids as little-endian int32 bytes."""
    array = (
        token_ids
        if isinstance(token_ids, np.ndarray)
        else np.array(list(token_ids), dtype=np.int32)
    )
    return array.astype("<i4", copy=False).tobytes()


def unpack_tokens(packed_tokens: bytes) -> list[int]:
    """The token ids that were packed."""
    ids: list[int] = np.frombuffer(packed_tokens, dtype="<i4").tolist()
    return ids


def root_key(*, cache_salt: str | None = None) -> PageKey:
    """The key before the first page: requests with different salts share no page.

    The salt is hashed with its presence and length, so that "" and None differ.
    """
    digest = hashlib.sha256(_IDENTITY_TAG)
    digest.update(b"cache_salt")
    if cache_salt is None:
        digest.update(b"\x00")
    else:
        text = cache_salt.encode()
        digest.update(b"\x01" + len(text).to_bytes(8, "little") + text)

    digest.update(_IDENTITY_END)
    return PageKey(digest.digest())


def extend_keys(parent: PageKey, packed_tokens: bytes, page_size: int) -> bytes:
    """Keys of the full pages that follow `parent`, 32 bytes each, concatenated.

    A trailing partial page has none. key_i = SHA-256(key_{i-1} || tokens of page i), so page by
    page and all at once give the same keys.
    """
    sha256 = hashlib.sha256
    page_bytes = page_size * TOKEN_BYTES
    key: bytes = parent
    keys = []

    for start in range(0, len(packed_tokens) - page_bytes + 1, page_bytes):
        key = sha256(key + packed_tokens[start : start + page_bytes]).digest()
        keys.append(key)
    return b"".join(keys)


_HALF_KEY = np.dtype((np.void, MIRROR_KEY_BYTES))


def short_keys(keys: bytes) -> bytes:
    """The first 16 bytes of each of these page keys, concatenated."""
    # Each second half is left out at once: thousands of slices would take twenty times as long.
    return np.frombuffer(keys, dtype=_HALF_KEY)[::2].tobytes()


def split_keys(keys: bytes, width: int = KEY_BYTES) -> list[PageKey]:
    """Take apart concatenated keys of `width` bytes each."""
    # Without a call for each of what may be thousands.
    split = [keys[i : i + width] for i in range(0, len(keys), width)]
    return cast("list[PageKey]", split)


class ChainKeys:
    """Owns: the short keys of a chain's pages, cut out once, however many mirrors are asked."""

    def __init__(self, keys: bytes) -> None:
        """Take a chain's page keys, concatenated; none is cut out yet."""
        self._keys = keys
        self._shorts: list[bytes] = []
        self._first = len(keys) // KEY_BYTES
        """The page that the first of `_shorts` is of: what L1 holds is seldom asked for."""

    def short(self, page: int) -> bytes:
        """The short key of one page; empty behind the last one."""
        start = page * KEY_BYTES
        return self._keys[start : start + MIRROR_KEY_BYTES]

    def shorts(self, start: int, stop: int) -> list[bytes]:
        """The short keys of pages [start, stop)."""
        if start < self._first:
            places = range(start * KEY_BYTES, len(self._keys), KEY_BYTES)
            self._shorts = [self._keys[place : place + MIRROR_KEY_BYTES] for place in places]
            self._first = start
        return self._shorts[start - self._first : stop - self._first]
