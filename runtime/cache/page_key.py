"""Page keys: SHA-256 chains over packed tokens, starting from a request's identity.

Packed tokens are `bytes` of little-endian int32, everywhere in the cache.
"""

import hashlib
from collections.abc import Iterable

import numpy as np

from raydix.ids import PageKey
from raydix.runtime.messages.arrays import Int32Array

TOKEN_BYTES = 4
_IDENTITY_TAG = b"raydix-identity-v1"


def pack_tokens(token_ids: Iterable[int] | Int32Array) -> bytes:
    """Token ids as little-endian int32 bytes."""
    array = (
        token_ids
        if isinstance(token_ids, np.ndarray)
        else np.array(list(token_ids), dtype=np.int32)
    )
    return array.astype("<i4", copy=False).tobytes()


def root_key(*, cache_salt: str | None = None, lora: str | None = None) -> PageKey:
    """The key before the first page: requests with different identities share no page.

    Each field is hashed with its presence and length, so ("a", "bc") and ("ab", "c") differ, as do
    "" and None.
    """
    digest = hashlib.sha256(_IDENTITY_TAG)
    for name, value in ((b"cache_salt", cache_salt), (b"lora", lora)):
        digest.update(name)
        if value is None:
            digest.update(b"\x00")
        else:
            text = value.encode()
            digest.update(b"\x01" + len(text).to_bytes(8, "little") + text)
    return PageKey(digest.digest())


def extend_keys(parent: PageKey, packed_tokens: bytes, page_size: int) -> bytes:
    """Keys of the full pages that follow `parent`, 32 bytes each, concatenated; a trailing partial
    page has none.

    key_i = SHA-256(key_{i-1} || tokens of page i), so page by page and all at once give the same
    keys.
    """
    sha256 = hashlib.sha256
    page_bytes = page_size * TOKEN_BYTES
    key: bytes = parent
    keys = []
    for start in range(0, len(packed_tokens) - page_bytes + 1, page_bytes):
        key = sha256(key + packed_tokens[start : start + page_bytes]).digest()
        keys.append(key)
    return b"".join(keys)
