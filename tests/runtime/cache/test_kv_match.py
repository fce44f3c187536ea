"""Matching over KV groups, against the rule applied to every length one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raydix.runtime.cache.kv_match import Availability, match_groups
from raydix.runtime.config.kv_layout import GroupKind, KvGroup, window_pages
from raydix.runtime.messages.host import PageSource

TIERS = {
    "1": PageSource.L1,
    "2": PageSource.L2,
    "3": PageSource.L3,
    ".": PageSource.NOT_FOUND,
    "?": PageSource.PENDING,
}


def group(kind: GroupKind, window: int | None = None) -> KvGroup:
    return KvGroup(kind=kind, layers=(0,), num_kv_heads=1, head_dim=8, window=window)


def pages(tiers: str) -> Availability:
    return bytes(TIERS[tier] for tier in tiers)


FULL = group(GroupKind.FULL)
LATENT = group(GroupKind.LATENT)


@pytest.mark.parametrize(
    ("window", "expected"), [(1, 1), (2, 1), (4, 1), (5, 2), (6, 2), (8, 2), (9, 3)]
)
def test_a_window_needs_the_pages_that_the_last_token_sees(window: int, expected: int) -> None:
    last = 40 - 1
    assert last // 4 - (last - window + 1) // 4 + 1 == expected
    assert window_pages(window, 4) == expected


@pytest.mark.parametrize("kind", [FULL, LATENT])
@pytest.mark.parametrize(
    ("tiers", "expected"), [("", 0), (".11", 0), ("112.3", 3), ("1?", 1), ("132", 3)]
)
def test_a_full_group_matches_up_to_its_first_gap(kind: KvGroup, tiers: str, expected: int) -> None:
    match = match_groups([kind], [pages(tiers)], page_size=4)

    assert match.num_pages == expected
    assert match.starts == (0,)
    assert match.sources[0] == pages(tiers)[:expected]


@pytest.mark.parametrize(
    ("tiers", "expected"),
    [
        ("....12", 6),
        ("11....", 2),
        ("1.1.1.", 1),
        ("......", 0),
        ("...1..", 0),
        ("11.11.", 5),
        ("..3...", 0),
    ],
)
def test_a_window_group_needs_only_the_pages_before_the_end(tiers: str, expected: int) -> None:
    match = match_groups([group(GroupKind.WINDOW, 8)], [pages(tiers)], page_size=4)

    assert match.num_pages == expected
    assert match.starts == (max(0, expected - 2),)


def test_every_group_limits_the_match() -> None:
    match = match_groups(
        [FULL, group(GroupKind.WINDOW, 8)], [pages("12323."), pages("1...1.")], page_size=4
    )

    assert match.num_pages == 1

    match = match_groups(
        [FULL, group(GroupKind.WINDOW, 8)], [pages("12323."), pages("1..131")], page_size=4
    )

    assert match.num_pages == 5
    assert match.starts == (0, 3)
    assert match.sources == (pages("12323"), pages("13"))


def test_a_window_of_one_token_needs_the_page_of_the_last_token() -> None:
    match = match_groups(
        [FULL, group(GroupKind.WINDOW, 1)], [pages("111"), pages(".1.")], page_size=4
    )

    assert (match.num_pages, match.starts) == (2, (0, 1))


def test_maps_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[2, 3\]"):
        match_groups([FULL, FULL], [pages("11"), pages("111")], page_size=4)
    with pytest.raises(ValueError, match="1 groups"):
        match_groups([FULL], [pages("11"), pages("11")], page_size=4)


def test_a_window_group_without_a_window_is_refused() -> None:
    with pytest.raises(ValueError, match="no window"):
        match_groups([group(GroupKind.WINDOW)], [pages("11")], page_size=4)


def naive_match(groups: list[KvGroup], maps: list[str], page_size: int) -> int:
    for num_pages in range(len(maps[0]), -1, -1):
        for kv_group, tiers in zip(groups, maps, strict=True):
            first = (
                0
                if kv_group.window is None
                else num_pages - window_pages(kv_group.window, page_size)
            )
            if any(tier in ".?" for tier in tiers[max(0, first) : num_pages]):
                break
        else:
            return num_pages
    raise AssertionError("length 0 is always valid")


@given(data=st.data(), num_pages=st.integers(0, 24), page_size=st.sampled_from([1, 4, 16]))
def test_the_match_is_the_longest_valid_length(
    data: st.DataObject, num_pages: int, page_size: int
) -> None:
    windows = data.draw(st.lists(st.none() | st.integers(1, 40), min_size=1, max_size=3))
    groups = [FULL if window is None else group(GroupKind.WINDOW, window) for window in windows]
    maps = [
        data.draw(st.text("11122233.?", min_size=num_pages, max_size=num_pages)) for _ in groups
    ]

    match = match_groups(groups, [pages(tiers) for tiers in maps], page_size=page_size)

    assert match.num_pages == naive_match(groups, maps, page_size)
    for tiers, start, sources in zip(maps, match.starts, match.sources, strict=True):
        assert sources == pages(tiers)[start : match.num_pages]
        assert set(sources) <= {PageSource.L1, PageSource.L2, PageSource.L3}
