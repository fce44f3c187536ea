"""Caches of models with sliding windows, and what to ask them."""

import numpy as np

from raydix.runtime.cache.kv_match import match_groups
from raydix.runtime.config.kv_layout import GroupKind, KvGroup, window_pages
from raydix.runtime.config.policies import EvictionPolicy
from raydix.runtime.messages.host import PageSource
from tests.runtime.cache.model_radix_tree import Cache

FULL, WINDOW = 0, 1


def tokens(first: int, last: int) -> list[int]:
    """The tokens of pages of one token each, both ends included."""
    return list(range(first, last + 1))


def cache_of(
    window: int = 4, *, page_size: int = 1, eviction: EvictionPolicy = EvictionPolicy.LRU
) -> Cache:
    """One FULL group, and one of a window of so many tokens."""
    return Cache(
        page_size=page_size, reaches=(None, window_pages(window, page_size)), eviction=eviction
    )


def live(cache: Cache, prompt: list[int], group: int = WINDOW) -> list[int]:
    """Which pages of a prompt a group holds."""
    return np.flatnonzero(cache.match(prompt).page_ids[group]).tolist()


def usable(cache: Cache, prompt: list[int], *, window: int = 4) -> int:
    """How many pages of a prompt the next token can be computed from."""
    groups = [
        KvGroup(kind=kind, layers=(0,), num_kv_heads=1, head_dim=8, window=tokens)
        for kind, tokens in ((GroupKind.FULL, None), (GroupKind.WINDOW, window))
    ]
    maps = [
        bytes([PageSource.L1 if page else PageSource.NOT_FOUND for page in ids.tolist()])
        for ids in cache.match(prompt).page_ids
    ]
    return match_groups(groups, maps, page_size=cache.page_size).num_pages


def counts(cache: Cache, group: int) -> tuple[int, int]:
    """Pages that are cached and those of them that are locked."""
    return cache.tree.num_cached_pages(group), cache.tree.num_locked_pages(group)
