"""Page keys of prompts that wait for their first token: whoever asks again hashes nothing anew."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from raydix.ids import RequestId
from raydix.runtime.cache.page_key import extend_keys, pack_tokens, root_key
from raydix.runtime.messages.arrays import Int32Array


@dataclass(frozen=True, slots=True)
class _Hashed:
    token_ids: Int32Array
    cache_salt: str | None = field(repr=False)
    keys: dict[int, bytes] = field(default_factory=dict)
    """The keys of all its full pages, by page size."""

    def is_of(self, token_ids: Int32Array, cache_salt: str | None) -> bool:
        """Whether these are the keys of this prompt: an id may stand for another one by now."""
        if cache_salt != self.cache_salt:
            return False
        return token_ids is self.token_ids or np.array_equal(token_ids, self.token_ids)


class PromptKeys:
    """Owns: the keys of each request that was asked for and whose first token has not come."""

    def __init__(self) -> None:
        self._kept: dict[RequestId, _Hashed] = {}

    def __len__(self) -> int:
        """The number of requests whose keys are kept."""
        return len(self._kept)

    def of(
        self,
        request_id: RequestId,
        token_ids: Int32Array,
        cache_salt: str | None,
        page_sizes: Iterable[int],
    ) -> dict[int, bytes]:
        """The keys of a prompt for each page size, in ascending order of these."""
        hashed = self._kept.get(request_id)
        if hashed is None or not hashed.is_of(token_ids, cache_salt):
            hashed = self._kept[request_id] = _Hashed(token_ids, cache_salt)
        sizes = sorted(page_sizes)
        if missing := [size for size in sizes if size not in hashed.keys]:
            packed, root = pack_tokens(token_ids), root_key(cache_salt=cache_salt)
            hashed.keys.update({size: extend_keys(root, packed, size) for size in missing})
        return {size: hashed.keys[size] for size in sizes}

    def forget(self, request_id: RequestId) -> None:
        """Drop what is kept of a request: it is answered, or nobody asks for it any more."""
        self._kept.pop(request_id, None)
