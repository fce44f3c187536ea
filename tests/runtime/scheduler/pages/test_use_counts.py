"""Counts of uses outlive pages, and are bounded."""

import random
import sys

from raydix.ids import PageKey
from raydix.runtime.scheduler.pages.use_counts import UseCounts


def make_keys(num_keys: int) -> list[PageKey]:
    draw = random.Random(0)
    return [PageKey(draw.randbytes(32)) for _ in range(num_keys)]


def test_uses_are_counted_by_key_and_ends_apart_from_them() -> None:
    uses = UseCounts(100)
    first, second = make_keys(2)
    assert [uses.add(first), uses.add(first), uses.add(second)] == [1, 2, 1]
    assert (uses.count(first), uses.count(second)) == (2, 1)
    assert not uses.is_end(first)
    uses.add_end(first)
    assert uses.is_end(first)
    assert uses.count(first) == 2


def test_pages_used_last_are_remembered_and_no_more_than_a_bounded_number() -> None:
    uses = UseCounts(100)
    keys = make_keys(300_000)
    for key in keys:
        uses.add(key)
    remembered = [key for key in keys if uses.count(key)]
    assert len(remembered) <= 2 * 65_536
    assert remembered == keys[-len(remembered) :] or set(keys[-60_000:]) <= set(remembered)
    parts = [*uses._recent, *uses._former]
    assert sum(map(sys.getsizeof, parts)) < 16 << 20


def test_a_page_that_is_used_now_and_then_is_not_forgotten() -> None:
    uses = UseCounts(100)
    kept, *others = make_keys(400_000)
    for place, key in enumerate(others):
        if place % 30_000 == 0:
            uses.add(kept)
        uses.add(key)
    assert uses.count(kept) == -(-len(others) // 30_000)
