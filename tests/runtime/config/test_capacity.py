from dataclasses import replace
from pathlib import Path

import pytest

from raydix.errors import ConfigError
from raydix.kernels.pages.page_codec import Codec
from raydix.runtime.config.capacity import (
    effective_summary,
    format_bytes,
    host_bytes_per_node,
    require_room_in_l3,
)
from raydix.runtime.config.kv_layout import FP8_DTYPE, GroupKind, KvGroup, KvLayout
from raydix.runtime.config.loading import load_config

LAYOUT = KvLayout(
    page_size=16,
    dtype="float32",
    dtype_bytes=4,
    groups=(KvGroup(kind=GroupKind.FULL, layers=(0, 1), num_kv_heads=2, head_dim=16),),
)


def test_a_ratio_counts_all_ranks_of_the_node(tmp_path: Path) -> None:
    config = load_config(
        tmp_path, {"parallel": {"dp": 2}, "cache": {"l1": {"num_pages": 10}, "l2": {"ratio": 3.0}}}
    )
    assert host_bytes_per_node(
        config, LAYOUT, num_pages=(10,), lanes_on_node=2
    ) == 3 * 2 * 10 * LAYOUT.host_page_bytes(0)


def test_ranks_that_share_pages_count_once(tmp_path: Path) -> None:
    config = load_config(
        tmp_path, {"cache": {"l1": {"num_pages": 10}, "l2": {"ratio": 2.0}, "codec": "none"}}
    )
    twice = replace(LAYOUT, groups=LAYOUT.groups * 2)

    num_bytes = host_bytes_per_node(config, twice, num_pages=(10, 6), lanes_on_node=1)

    assert num_bytes == 2 * (10 + 6) * LAYOUT.host_page_bytes(0)


def test_no_prefix_caching_means_no_arena(tmp_path: Path) -> None:
    config = load_config(tmp_path, {"cache": {"prefix_caching": False}})
    assert host_bytes_per_node(config, LAYOUT, num_pages=(10,), lanes_on_node=1) is None


def test_the_summary_tells_pages_and_tokens_of_each_tier(tmp_path: Path) -> None:
    config = load_config(
        tmp_path,
        {
            "cache": {
                "l1": {"num_pages": 100},
                "l2": {"bytes_per_node": "1MiB"},
                "l3": {"backend": "fake"},
            }
        },
    )

    summary = effective_summary(config, LAYOUT, (100,))

    assert "16 tokens, 8KiB" in summary
    assert "100 pages = 1,600 tokens" in summary
    assert f"{2**20 // (8192 + 64)} pages" in summary
    assert "backend fake" in summary


def test_states_count_as_much_as_few_pages_have_them(tmp_path: Path) -> None:
    config = load_config(tmp_path, {"cache": {"l2": {"bytes_per_node": "1MiB"}}})
    # As heavy as the keys and values of four pages: every fourth page has a state.
    state = KvGroup(kind=GroupKind.STATE, layers=(2,), num_kv_heads=2, head_dim=4 * 1024)

    summary = effective_summary(config, replace(LAYOUT, groups=(*LAYOUT.groups, state)), (100, 7))

    assert "100 pages = 1,600 tokens" in summary
    assert "7 states of 32KiB" in summary
    assert f"{2**20 // (8192 + 64 + (4 * 8192 + 64) // 4)} pages" in summary


def test_the_summary_says_what_rounds_pages(tmp_path: Path) -> None:
    config = load_config(tmp_path, {"cache": {"l2": {"bytes_per_node": "1MiB"}, "codec": "int8"}})

    summary = effective_summary(config, replace(LAYOUT, codec=Codec.INT8), (100,))

    assert "16 tokens, 8KiB" in summary
    assert f"{2**20 // (2 * 2 * (2 * 256 + 16) + 64)} pages" in summary
    assert "rounded to int8" in summary
    assert "rounded" not in effective_summary(config, LAYOUT, (100,))


def test_the_summary_says_that_keys_and_values_are_in_fp8(tmp_path: Path) -> None:
    config = load_config(tmp_path, {"cache": {"l2": None}})
    bytes_each = LAYOUT.dtype_bytes

    summary = effective_summary(config, replace(LAYOUT, dtype=FP8_DTYPE, dtype_bytes=1), (100,))

    assert f"16 tokens, {8 // bytes_each}KiB, FP8" in summary
    assert "FP8" not in effective_summary(config, LAYOUT, (100,))


def test_the_summary_says_which_tiers_are_off(tmp_path: Path) -> None:
    summary = effective_summary(load_config(tmp_path, {"cache": {"l2": None}}), LAYOUT, (100,))
    assert "L2     off" in summary
    assert "L3     off" in summary


def test_the_summary_says_why_a_tier_that_was_asked_for_is_off(tmp_path: Path) -> None:
    l3 = {"backend": "file", "path": str(tmp_path), "max_bytes": "1GiB"}
    config = load_config(tmp_path, {"cache": {"prefix_caching": False, "l3": l3}})

    summary = effective_summary(config, LAYOUT, (100,))

    assert "L2     off, as cache.prefix_caching is false" in summary
    assert "L3     off, as cache.prefix_caching is false" in summary


def test_the_summary_tells_pools_of_windows_apart(tmp_path: Path) -> None:
    window = replace(LAYOUT.groups[0], kind=GroupKind.WINDOW, layers=(2,), window=20)
    mixed = replace(LAYOUT, groups=(*LAYOUT.groups, window))

    summary = effective_summary(load_config(tmp_path), mixed, (100, 98))

    assert "per rank, 98 pages for layers with a window of 20 tokens, eviction" in summary


def test_the_summary_says_where_experts_are(tmp_path: Path) -> None:
    shared = {"parallel": {"dp": 2, "ep": 2}, "experts": {"dispatch": "gloo"}}

    summary = effective_summary(load_config(tmp_path, shared), LAYOUT, (100,))

    assert "MoE    experts over 2 ranks, all in host memory, too, dispatch gloo" in summary
    assert "rows travel as float32, rebalance" in summary
    rounded = {**shared, "experts": {"transport": "fp8"}}
    summary = effective_summary(load_config(tmp_path, rounded), LAYOUT, (100,))
    assert "rows travel as float8, which rounds them, rebalance" in summary
    assert "MoE" not in effective_summary(load_config(tmp_path), LAYOUT, (100,))


def test_the_summary_says_that_a_section_on_experts_is_of_no_use(tmp_path: Path) -> None:
    config = load_config(tmp_path, {"experts": {"dispatch": "gloo"}})
    assert "parallel.ep is 1: the section experts" in effective_summary(config, LAYOUT, (100,))


def test_bytes_are_told_in_binary_units() -> None:
    assert [format_bytes(value) for value in (0, 1023, 1536, 2**30)] == [
        "0B",
        "1023B",
        "1.5KiB",
        "1GiB",
    ]


def test_storage_without_room_for_a_page_is_refused(tmp_path: Path) -> None:
    page_bytes = LAYOUT.host_page_bytes(0)
    for num_bytes, is_enough in ((page_bytes, True), (page_bytes - 1, False)):
        l3 = {"backend": "file", "path": "x", "max_bytes": num_bytes}
        config = load_config(tmp_path, {"cache": {"l3": l3}})
        if is_enough:
            require_room_in_l3(config, LAYOUT)
        else:
            with pytest.raises(ConfigError, match=rf"less than the {page_bytes} bytes of one page"):
                require_room_in_l3(config, LAYOUT)


def test_storage_that_others_bound_is_not_judged(tmp_path: Path) -> None:
    require_room_in_l3(load_config(tmp_path, {"cache": {"l3": {"backend": "redis"}}}), LAYOUT)
