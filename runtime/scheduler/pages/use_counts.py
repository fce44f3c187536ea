"""What is remembered of pages, whether they are cached or not."""

from raydix.ids import PageKey

_NUM_SHARDS = 64
_MIN_PAGES = 65_536
_PAGES_PER_L1_PAGE = 4
"""The least number of pages remembered per page of L1, at some 100 bytes; at most twice as many."""
_SHORT_BYTES = 8
"""The number of bytes of a key that are kept, enough to tell millions of keys apart."""
_END = b"end"
"""The prefix that marks the key of a page with which a request has ended."""
_LOSS = b"loss"
"""The prefix that marks the key of a page that has left L1 without a copy."""


class UseCounts:
    """Owns: by key, how many requests have used each of the pages that were used last, with
    which of them requests have ended, and which were lost.

    It outlives the pages in L1, as what returns when L1 has turned over is what L2 is for. Several
    times as many pages are remembered as L1 has: in each of many small dicts those that were used
    since it was begun, and in the one before it those that were used before that.
    """

    def __init__(self, num_l1_pages: int) -> None:
        num_pages = max(_MIN_PAGES, _PAGES_PER_L1_PAGE * num_l1_pages)
        self._max_recent = num_pages // _NUM_SHARDS
        self._recent: list[dict[bytes, int]] = [{} for _ in range(_NUM_SHARDS)]
        self._former: list[dict[bytes, int]] = [{} for _ in range(_NUM_SHARDS)]

    def add(self, key: PageKey) -> int:
        """Count one more request that uses a page; returns the new count."""
        return self._add(key[-1] % _NUM_SHARDS, key[:_SHORT_BYTES])

    def add_end(self, key: PageKey) -> None:
        """Note that this was the last full page of a request that has ended."""
        self._add(key[-1] % _NUM_SHARDS, _END + key[:_SHORT_BYTES])

    def is_end(self, key: PageKey) -> bool:
        """Whether a request has ended with this page: who goes on behind it has returned to it."""
        return self._count(key[-1] % _NUM_SHARDS, _END + key[:_SHORT_BYTES]) > 0

    def add_loss(self, key: PageKey) -> None:
        """Note that the page has left L1, and no tier has it."""
        self._add(key[-1] % _NUM_SHARDS, _LOSS + key[:_SHORT_BYTES])

    def is_lost(self, key: PageKey) -> bool:
        """Whether the page was ever lost, as far as is remembered."""
        return self._count(key[-1] % _NUM_SHARDS, _LOSS + key[:_SHORT_BYTES]) > 0

    def _add(self, shard: int, short: bytes) -> int:
        recent, former = self._recent[shard], self._former[shard]
        num_uses = recent.get(short) or former.pop(short, 0)
        recent[short] = num_uses + 1
        if len(recent) >= self._max_recent:
            self._former[shard], self._recent[shard] = recent, {}
        return num_uses + 1

    def count(self, key: PageKey) -> int:
        """The number of requests that have used a page, as far as is remembered."""
        return self._count(key[-1] % _NUM_SHARDS, key[:_SHORT_BYTES])

    def _count(self, shard: int, short: bytes) -> int:
        return self._recent[shard].get(short) or self._former[shard].get(short, 0)
