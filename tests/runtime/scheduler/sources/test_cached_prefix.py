"""What is loaded to take a chain up: against every end, tried one by one."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from raydix.runtime.cache.page_key import KEY_BYTES, ChainKeys, root_key
from raydix.runtime.cache.radix_tree import Match
from raydix.runtime.config.kv_layout import GroupKind, KvLayout
from raydix.runtime.messages.host import PageSource
from raydix.runtime.messages.mirror import MirrorUpdate
from raydix.runtime.scheduler.settings import SchedulerSettings
from raydix.runtime.scheduler.sources.cached_prefix import ends_in_l1, find_prefix, tiers_of
from raydix.runtime.scheduler.sources.mirror import Mirror
from tests.runtime.scheduler.core_driver import BASE
from tests.runtime.scheduler.keys import mirror_keys

FULL = BASE.layout.groups[0]
WINDOW = replace(FULL, kind=GroupKind.WINDOW, window=8)
LAYOUTS = [
    replace(BASE.layout, groups=groups)
    for groups in (
        (FULL,),
        (FULL, FULL),
        (FULL, WINDOW),
        (WINDOW,),
        (replace(WINDOW, window=1), FULL, replace(WINDOW, window=16)),
        (replace(WINDOW, window=13), WINDOW),
    )
]
NUM_PAGES = 8
KEYS = b"".join(bytes([page]) * KEY_BYTES for page in range(NUM_PAGES))
pages = st.sets(st.integers(0, NUM_PAGES - 1))


def settings_of(layout: KvLayout) -> SchedulerSettings:
    return replace(BASE, layout=layout)


def key(page: int) -> bytes:
    return KEYS[page * KEY_BYTES : (page + 1) * KEY_BYTES]


def host_with(layout: KvLayout, in_l2: list[set[int]]) -> Mirror:
    host = Mirror(len(layout.groups))
    for group, held in enumerate(in_l2):
        keys = b"".join(map(key, sorted(held)))
        host.follow(MirrorUpdate(ready=mirror_keys(keys), group=group))
    return host


def match_with(layout: KvLayout, num_path: int, in_l1: list[set[int]]) -> Match:
    ids = [
        np.array(
            [1 + page if reach is None or page in held else 0 for page in range(num_path)],
            dtype=np.int32,
        )
        for held, reach in zip(in_l1, layout.reaches, strict=True)
    ]
    return Match(num_path, tuple(ids), root_key(), None)


def loads_for(
    layout: KvLayout, match: Match, in_l2: list[set[int]], end: int
) -> list[list[int]] | None:
    """Per group, what must come from L2 to go on behind `end`; None if that cannot be leased."""
    loads = []
    for group, reach in enumerate(layout.reaches):
        needed = range(0 if reach is None else max(0, end - reach), end)
        held = match.page_ids[group]
        lacking = [page for page in needed if page >= match.num_pages or not held[page]]
        if lacking and not set(range(lacking[0], end)) <= in_l2[group]:
            return None
        loads.append(lacking)
    return loads


@given(
    layout=st.sampled_from(LAYOUTS),
    num_path=st.integers(0, NUM_PAGES),
    max_pages=st.integers(0, NUM_PAGES),
    in_l1=st.lists(pages, min_size=3, max_size=3),
    in_l2=st.lists(pages, min_size=3, max_size=3),
)
@settings(max_examples=500)
def test_the_longest_prefix_that_can_be_leased_is_found(
    layout: KvLayout,
    num_path: int,
    max_pages: int,
    in_l1: list[set[int]],
    in_l2: list[set[int]],
) -> None:
    num_groups = len(layout.groups)
    match = match_with(layout, num_path, in_l1[:num_groups])
    host = host_with(layout, in_l2[:num_groups])

    found = find_prefix(settings_of(layout), host, match, ChainKeys(KEYS), max_pages=max_pages)

    by_end = {end: loads_for(layout, match, in_l2, end) for end in range(max_pages + 1)}
    possible = [end for end, loads in by_end.items() if loads is not None]
    assert found.num_pages == max(possible)
    assert [list(loads) for loads in found.loads] == by_end[found.num_pages]
    in_l1_alone = [end for end in possible if not any(by_end[end] or [])]
    assert found.num_l1_pages == max(in_l1_alone)
    assert found.num_known_pages >= found.num_pages

    alone = find_prefix(settings_of(layout), None, match, ChainKeys(b""), max_pages=max_pages)
    assert alone.num_pages == alone.num_l1_pages == found.num_l1_pages
    assert not any(alone.loads)


class CountingHost(Mirror):
    """Counts the pages that it is asked about one by one."""

    num_asked = 0

    def has_page(self, group: int, keys: ChainKeys, page: int) -> bool:
        self.num_asked += 1
        return super().has_page(group, keys, page)


def test_few_pages_of_a_long_chain_are_asked_about_to_find_its_windows() -> None:
    layout, num_pages, checkpoint = LAYOUTS[-1], 4000, 1000
    reach = max(each or 0 for each in layout.reaches)
    keys = b"".join(page.to_bytes(KEY_BYTES, "little") for page in range(num_pages))
    match = match_with(layout, num_pages, [set(), set()])

    for in_l2, end in ((range(0), 0), (range(checkpoint - reach, checkpoint), checkpoint)):
        host = CountingHost(len(layout.groups))
        ready = b"".join(keys[page * KEY_BYTES :][:KEY_BYTES] for page in in_l2)
        for group in range(len(layout.groups)):
            host.follow(MirrorUpdate(ready=mirror_keys(ready), group=group))
        found = find_prefix(settings_of(layout), host, match, ChainKeys(keys), max_pages=num_pages)

        assert found.num_pages == end
        assert host.num_asked <= num_pages / reach + 10 * reach


def test_a_window_group_ends_in_l1_where_its_last_window_does() -> None:
    layout = LAYOUTS[2]
    match = match_with(layout, 8, [set(), {1, 2, 3, 5, 7}])
    assert ends_in_l1(settings_of(layout), match, 8) == (8, 4)
    assert ends_in_l1(settings_of(layout), match, 3) == (3, 3)
    assert ends_in_l1(settings_of(layout), match_with(layout, 8, [set(), {5, 7}]), 8) == (8, 0)


def test_a_page_counts_for_the_farthest_tier_of_the_groups_that_need_it() -> None:
    l1, l2 = PageSource.L1, PageSource.L2
    mixed, all_window = LAYOUTS[2], LAYOUTS[3]
    assert list(tiers_of(settings_of(mixed), 4, ((), (3,)))) == [l1, l1, l1, l2]
    assert list(tiers_of(settings_of(mixed), 4, (range(1, 4), (3,)))) == [l1, l2, l2, l2]
    assert list(tiers_of(settings_of(all_window), 4, ((2, 3),))) == [l2, l2, l2, l2]
    assert list(tiers_of(settings_of(all_window), 4, ((),))) == [l1] * 4
