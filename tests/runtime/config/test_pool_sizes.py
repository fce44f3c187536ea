"""Pools of L1: as large as the bytes allow, those of windows on their own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raydix.errors import ConfigError
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout
from raydix.runtime.config.loading import load_config
from raydix.runtime.config.pool_sizes import (
    largest_pools,
    least_window_pages,
    max_context_pages,
    pool_pages,
)

FULL = KvGroup(kind=GroupKind.FULL, layers=(0,), num_kv_heads=1, head_dim=8)
WINDOW = replace(FULL, kind=GroupKind.WINDOW, layers=(1, 2, 3), window=64)
LAYOUT = KvLayout(page_size=16, dtype="float32", dtype_bytes=4, groups=(FULL,))
MIXED = replace(LAYOUT, groups=(FULL, WINDOW))
STATE = replace(FULL, kind=GroupKind.STATE, layers=(4,), head_dim=16 * 16 * 10)
STATEFUL = replace(LAYOUT, groups=(FULL, STATE))
"""A state weighs as much as the keys and values of ten pages."""
ALL_WINDOW = replace(LAYOUT, groups=(WINDOW, replace(WINDOW, layers=(4,), window=16)))


def config_of(folder: Path, *, chunk: int | None = 64, span: int = 1600) -> EngineConfig:
    changes: dict[str, Any] = {
        "cache": {"l1": {"num_pages": 1000, "tokens_per_window": span}},
        "scheduler": {"chunked_prefill_tokens": chunk},
    }
    return load_config(folder, changes)


def test_one_request_needs_two_windows_and_a_step_at_most() -> None:
    assert least_window_pages(MIXED, 64) == (0, 2 * 4 + 4 + 2)
    assert least_window_pages(MIXED, 65) == (0, 2 * 4 + 5 + 2)


def test_full_groups_have_the_pages_that_are_asked_for(tmp_path: Path) -> None:
    assert pool_pages(config_of(tmp_path), LAYOUT, 1000) == (1000,)


def test_a_window_pool_has_room_for_one_window_per_so_many_tokens(tmp_path: Path) -> None:
    # A window of 64 tokens is 4 pages, and 6 of them a window that is being moved.
    assert pool_pages(config_of(tmp_path), MIXED, 5000) == (5000, 14 + 6 * 5000 // 100)


def test_some_requests_have_a_window_each_however_few_tokens_there_are(tmp_path: Path) -> None:
    assert pool_pages(config_of(tmp_path, span=10**6), MIXED, 1000) == (1000, 14 + 6 * 16)


def test_a_window_pool_is_never_larger_than_a_full_one(tmp_path: Path) -> None:
    assert pool_pages(config_of(tmp_path, span=16), MIXED, 1000) == (1000, 1000)
    assert pool_pages(config_of(tmp_path), MIXED, 10) == (10, 10)


def test_prompts_that_are_computed_at_once_need_all_their_pages_in_every_group(
    tmp_path: Path,
) -> None:
    assert pool_pages(config_of(tmp_path, chunk=None), MIXED, 1000) == (1000, 1000)


def test_without_full_groups_the_widest_window_has_the_pages_asked_for(tmp_path: Path) -> None:
    assert pool_pages(config_of(tmp_path), ALL_WINDOW, 1000) == (1000, 400)


def test_too_few_pages_for_a_window_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least 14"):
        pool_pages(config_of(tmp_path), ALL_WINDOW, 13)


@pytest.mark.parametrize("layout", [LAYOUT, MIXED, ALL_WINDOW])
@pytest.mark.parametrize("num_bytes", [100_000, 1_000_000, 123_456_789])
def test_the_largest_pools_fit_and_one_page_more_does_not(
    tmp_path: Path, layout: KvLayout, num_bytes: int
) -> None:
    config = config_of(tmp_path)
    page_bytes = [layout.payload_bytes(group) for group in range(len(layout.groups))]

    def bytes_of(num_pages: int) -> int:
        pools = zip(pool_pages(config, layout, num_pages), page_bytes, strict=True)
        return sum((pages + 1) * size for pages, size in pools)

    found = largest_pools(config, layout, page_bytes, num_bytes)

    assert bytes_of(found) <= num_bytes < bytes_of(found + 1)


def test_too_few_bytes_have_room_for_no_pool(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    assert largest_pools(config, MIXED, (1024, 3072), 4000) == 0
    assert largest_pools(config, ALL_WINDOW, (3072, 1024), 40_000) == 0


def test_windows_bound_no_context_unless_prompts_are_computed_at_once() -> None:
    assert max_context_pages(MIXED, (1000, 60), is_chunked=True) == 1000
    assert max_context_pages(MIXED, (1000, 60), is_chunked=False) == 60
    assert max_context_pages(ALL_WINDOW, (1000, 400), is_chunked=True) is None


def test_states_leave_prompts_that_are_computed_at_once_the_context_of_the_other_pages(
    tmp_path: Path,
) -> None:
    pools = pool_pages(config_of(tmp_path, chunk=None, span=10**6), STATEFUL, 1000)

    assert pools[1] < 200
    assert max_context_pages(STATEFUL, pools, is_chunked=False) == 1000


@pytest.mark.parametrize("num_states", [3, 9, 10, 20, 57])
def test_the_longest_prompt_of_one_step_leaves_as_many_states_as_there_is_room_for(
    num_states: int,
) -> None:
    longest = max_context_pages(STATEFUL, (10_000, num_states), is_chunked=False)
    assert longest is not None

    def fits(num_pages: int) -> bool:
        return least_window_pages(STATEFUL, num_pages * 16)[1] <= num_states

    assert longest == num_states or fits(longest)
    assert longest >= num_states
    assert not fits(longest + 1)


def states_beside(tmp_path: Path, num_pages: int, weight: int) -> int:
    """States beyond those of one request, of which each weighs as many pages of the other group."""
    layout = replace(STATEFUL, groups=(FULL, replace(STATE, head_dim=16 * 16 * weight)))
    num_states = pool_pages(config_of(tmp_path, span=16), layout, num_pages)[1]
    return num_states - least_window_pages(layout, 64)[1]


@pytest.mark.parametrize("weight", [10, 60])
def test_states_take_a_third_of_l1(weight: int, tmp_path: Path) -> None:
    num_states = states_beside(tmp_path, 10_000, weight)

    assert 5000 - 3 * weight < num_states * weight <= 5000


@pytest.mark.parametrize(
    ("num_pages", "num_states"), [(9600, 48), (4800, 24), (1200, 6), (1000, 3), (100, 3)]
)
def test_states_of_up_to_16_requests_take_half_of_a_small_l1(
    num_pages: int, num_states: int, tmp_path: Path
) -> None:
    assert states_beside(tmp_path, num_pages, 200) == num_states


def test_tokens_per_window_may_let_states_take_less(tmp_path: Path) -> None:
    fewest = least_window_pages(STATEFUL, 64)[1]

    assert pool_pages(config_of(tmp_path, span=16_000), STATEFUL, 100_000)[1] == fewest + 3 * 100


def test_a_small_l1_of_a_model_with_large_states_has_room_for_a_long_context(
    tmp_path: Path,
) -> None:
    # As Qwen3.6-27B has it: 64 KiB a token, 150 MiB a state.
    full = replace(FULL, layers=tuple(range(16)), num_kv_heads=4, head_dim=256)
    state = replace(STATE, layers=tuple(range(48)), num_kv_heads=16, head_dim=51_072)
    layout = KvLayout(page_size=64, dtype="bfloat16", dtype_bytes=2, groups=(full, state))
    page_bytes = (64 * layout.token_bytes, layout.state_bytes)

    num_pages = largest_pools(config_of(tmp_path, chunk=2048), layout, page_bytes, 8 << 30)

    assert num_pages * 64 > 50_000
