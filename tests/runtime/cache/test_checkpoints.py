"""Where the windows of a chain are kept in L2 and L3."""

from raydix.runtime.cache.checkpoints import checkpoints_between, window_before
from raydix.runtime.config.checkpoint_distance import checkpoint_distance
from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout


def layout(*groups: KvGroup) -> KvLayout:
    return KvLayout(page_size=16, dtype="float32", dtype_bytes=4, groups=groups)


def full(num_layers: int) -> KvGroup:
    return KvGroup(kind=GroupKind.FULL, layers=tuple(range(num_layers)), num_kv_heads=1, head_dim=8)


def window(num_layers: int, num_tokens: int) -> KvGroup:
    return KvGroup(
        kind=GroupKind.WINDOW,
        layers=tuple(range(num_layers)),
        num_kv_heads=1,
        head_dim=8,
        window=num_tokens,
    )


def test_layers_that_see_everything_need_no_checkpoint() -> None:
    assert checkpoint_distance(layout(full(4))) is None


def test_checkpoints_are_eight_windows_apart_where_windows_are_the_lighter_part() -> None:
    assert checkpoint_distance(layout(full(4), window(4, 128))) == 8 * 128 // 16
    assert checkpoint_distance(layout(full(4), window(1, 128))) == 8 * 128 // 16


def test_checkpoints_are_rarer_the_heavier_windows_are() -> None:
    assert checkpoint_distance(layout(full(1), window(5, 1024))) == 5 * 8 * 1024 // 16
    assert checkpoint_distance(layout(full(2), window(3, 1024), window(2, 64))) == (
        5 * 8 * 1024 // 2 // 16
    )


def test_a_model_of_windows_alone_has_checkpoints_eight_windows_apart() -> None:
    assert checkpoint_distance(layout(window(3, 100))) == 50
    assert checkpoint_distance(layout(window(3, 1))) == 1


def test_checkpoints_are_those_behind_the_start_up_to_the_stop() -> None:
    assert checkpoints_between(0, 10, 4) == [4, 8]
    assert checkpoints_between(4, 8, 4) == [8]
    assert checkpoints_between(8, 8, 4) == []
    assert checkpoints_between(0, 10, 4, others=(0, 3, 4, 10, 11)) == [3, 4, 8, 10]


def test_the_window_before_a_checkpoint_begins_with_the_chain_at_the_earliest() -> None:
    assert window_before(10, 3) == range(7, 10)
    assert window_before(2, 3) == range(2)
    assert window_before(5, 0) == range(5, 5)
