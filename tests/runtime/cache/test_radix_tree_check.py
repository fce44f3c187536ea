"""The radix tree's check: each broken invariant is found."""

import pytest

from raydix.errors import AccountingError
from raydix.runtime.messages.arrays import int32_array
from tests.runtime.cache.model_radix_tree import Cache


def tokens(first: int, last: int) -> list[int]:
    return list(range(first, last + 1))


def test_check_finds_broken_counts() -> None:
    for name in (
        "num_locked_pages",
        "num_locks",
        "num_cached_pages",
        "num_nodes",
        "num_inspected_pages",
    ):
        cache = Cache()
        cache.run(tokens(1, 4))
        eviction = cache.tree._eviction
        owners = (eviction._order, eviction, cache.tree.forest, cache.tree)
        owner = next(owner for owner in owners if name in vars(owner))
        setattr(owner, name, getattr(owner, name) + 1)
        with pytest.raises(AccountingError, match="counted"):
            cache.tree.check()


def test_check_finds_broken_nodes() -> None:
    damages = {
        "end": (9, "pages"),
        "keys": (b"", "pages"),
        "first_page": (b"1234", "misplaced"),
        "parent": (None, "misplaced"),
        "num_locks": (1, "locks"),
        "ticket": (0, "disagrees with its place"),
        "is_inspected": (True, "disagrees with its place"),
        "priority": (-5, "priority"),
        "page_ids": ((int32_array([1, 2, 2, 4]),), "twice"),
    }
    for name, (value, message) in damages.items():
        cache = Cache()
        cache.run(tokens(1, 4))
        cache.run(tokens(1, 8))
        path = cache.match(tokens(1, 8 if name in ("ticket", "is_inspected") else 4))
        assert path.node is not None
        if name == "priority":
            leaf = cache.match(tokens(1, 8)).node
            assert leaf is not None
            leaf.priority = value  # type: ignore[assignment]
        else:
            setattr(path.node, name, value)
        with pytest.raises(AccountingError, match=message):
            cache.tree.check()
