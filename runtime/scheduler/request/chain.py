"""A prompt as the cache sees it: pages of tokens, each with a key that covers all before it."""

import bisect
from collections.abc import Iterable

import numpy as np

from raydix.ids import PageKey
from raydix.runtime.cache.page_key import (
    KEY_BYTES,
    MIRROR_KEY_BYTES,
    TOKEN_BYTES,
    extend_keys,
    pack_tokens,
    root_key,
)
from raydix.runtime.messages.arrays import Int32Array


class Chain:
    """Owns: the tokens of a prompt, then of its output, and the keys of their full pages.

    Keys are hashed when they are first asked for, and kept.
    """

    def __init__(self, token_ids: Int32Array, *, cache_salt: str | None, page_size: int) -> None:
        self.num_prompt = len(token_ids)
        self.identity: PageKey = root_key(cache_salt=cache_salt)
        self.cache_salt = cache_salt
        self._page_size = page_size
        self._packed = bytearray(pack_tokens(token_ids))
        self._keys = bytearray()

    @property
    def num_prompt_pages(self) -> int:
        """Full pages of the prompt."""
        return self.num_prompt // self._page_size

    @property
    def num_output(self) -> int:
        """Output tokens that follow the prompt."""
        return self.num_tokens - self.num_prompt

    @property
    def num_tokens(self) -> int:
        """All tokens that are known."""
        return len(self._packed) // TOKEN_BYTES

    @property
    def packed(self) -> bytes:
        """The packed tokens, all that are known."""
        return bytes(self._packed)

    def packed_pages(self, start: int, stop: int) -> bytes:
        """The tokens of pages [start, stop)."""
        width = self._page_size * TOKEN_BYTES
        with memoryview(self._packed) as packed:
            return bytes(packed[start * width : stop * width])

    def token_ids(self) -> Int32Array:
        """The ids of all known tokens, int32."""
        return np.frombuffer(self.packed, dtype=np.int32)

    def append(self, token_ids: Int32Array) -> None:
        """Add output tokens that have become known."""
        self._packed += pack_tokens(token_ids)

    @property
    def num_keys(self) -> int:
        """Full pages whose keys are known."""
        return len(self._keys) // KEY_BYTES

    def adopt_keys(self, keys: bytes) -> None:
        """Take the keys of the first pages from where they are known; only before any is hashed."""
        assert not self._keys, "keys are known already"
        self._keys += keys

    def extend_keys(self, num_pages: int, max_new: int) -> int:
        """Hash keys of the first `num_pages` full pages, at most `max_new`; returns how many."""
        known = self.num_keys
        stop = min(num_pages, known + max_new)
        if known >= stop:
            return 0

        parent = PageKey(bytes(self._keys[-KEY_BYTES:])) if known else self.identity
        self._keys += extend_keys(parent, self.packed_pages(known, stop), self._page_size)
        return self.num_keys - known

    def keys(self, stop: int, start: int = 0) -> bytes:
        """Keys of the full pages [start, stop), hashing only what is new."""
        self.extend_keys(stop, stop)
        return bytes(self._keys[start * KEY_BYTES : stop * KEY_BYTES])

    def key(self, page: int) -> PageKey:
        """Key of one full page."""
        return PageKey(self.keys(page + 1, page))

    def short_keys(self, pages: Iterable[int]) -> list[bytes]:
        """The first 16 bytes of the keys of these prompt pages, which is what the mirror holds."""
        keys = self.keys(self.num_prompt_pages)
        return [keys[page * KEY_BYTES : page * KEY_BYTES + MIRROR_KEY_BYTES] for page in pages]

    def num_shared_pages(self, other: "Chain") -> int:
        """The number of full pages with which both prompts begin."""
        stop = min(self.num_prompt_pages, other.num_prompt_pages)
        self.extend_keys(stop, stop)
        other.extend_keys(stop, stop)
        # Keys are chained: where two are equal, all before them are.
        return bisect.bisect_left(
            range(stop), True, key=lambda page: self._key_at(page) != other._key_at(page)
        )

    def _key_at(self, page: int) -> bytearray:
        return self._keys[page * KEY_BYTES : (page + 1) * KEY_BYTES]
