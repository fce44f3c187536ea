"""A block of L2 takes what its request leaves behind: pages, and a share of windows and states."""

import pytest

from raydix.runtime.config.checkpoint_distance import checkpoint_distance
from raydix.runtime.config.engine import EngineConfig
from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout
from raydix.runtime.foresight.plan.model_blocks import ModelBytes, TokenBytes, mean_new_blocks

PAGE, BLOCK = 16, 64
CONFIG = EngineConfig.model_validate({"model": {"path": "unused"}})
FULL = KvGroup(kind=GroupKind.FULL, layers=(0, 1), num_kv_heads=2, head_dim=32)
WINDOW = KvGroup(kind=GroupKind.WINDOW, layers=(2,), num_kv_heads=2, head_dim=32, window=128)
STATE = KvGroup(kind=GroupKind.STATE, layers=(2,), num_kv_heads=2, head_dim=4096)


def model(*groups: KvGroup, new_blocks: float) -> ModelBytes:
    layout = KvLayout(page_size=PAGE, dtype="bfloat16", dtype_bytes=2, groups=groups)
    return ModelBytes(config=CONFIG, layout=layout, block_tokens=BLOCK, new_blocks=new_blocks)


def test_whole_prefixes_take_their_pages() -> None:
    found = model(FULL, new_blocks=3.0)
    assert found.host_block_bytes == 4 * found.layout.host_page_bytes(0)
    assert found.l2(int(10.5 * found.host_block_bytes)).num_blocks == 10


@pytest.mark.parametrize(("new_blocks", "num_window_pages"), [(10.0, 8), (1.0, 4)])
def test_a_request_leaves_one_window_or_all_its_pages(
    new_blocks: float, num_window_pages: int
) -> None:
    found = model(FULL, WINDOW, new_blocks=new_blocks)
    pages = 4 * found.layout.host_page_bytes(0)
    windows = num_window_pages * found.layout.host_page_bytes(1) / new_blocks
    assert found.host_block_bytes == pytest.approx(pages + windows)


def test_a_request_leaves_a_state_at_its_end_and_at_regular_distances() -> None:
    found = model(FULL, STATE, new_blocks=5.0)
    distance = checkpoint_distance(found.layout)
    assert distance is not None
    states = (1 + 20 / distance) * found.layout.host_page_bytes(1) / 5
    assert found.host_block_bytes == pytest.approx(4 * found.layout.host_page_bytes(0) + states)


def test_more_of_l1_holds_more_and_windows_take_their_part() -> None:
    alone, beside = model(FULL, new_blocks=5.0), model(FULL, WINDOW, new_blocks=5.0)
    sizes = [alone.l1(num_bytes).num_blocks for num_bytes in (1 << 20, 1 << 22, 1 << 24)]
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == pytest.approx((1 << 24) / (BLOCK * alone.layout.token_bytes), rel=0.05)
    assert 0 < beside.l1(1 << 24).num_blocks < sizes[-1]


def test_bytes_of_a_token_alone_say_it_too() -> None:
    blocks = TokenBytes(token_bytes=10, block_tokens=BLOCK)
    assert blocks.l1(6400).num_blocks == blocks.l2(6400).num_blocks == 10


def test_what_requests_add_is_counted_once() -> None:
    assert mean_new_blocks([(1, 2, 3), (1, 2, 3), (1, 4)]) == 2.0
    assert mean_new_blocks([()]) == 1.0
