from dataclasses import replace

import pytest

from raydix.errors import ConfigError
from raydix.kernels.pages.page_codec import Codec
from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout
from raydix.runtime.config.kv_shard import KvShard

FULL = KvGroup(kind=GroupKind.FULL, layers=(0, 2, 3), num_kv_heads=4, head_dim=8)
LATENT = KvGroup(kind=GroupKind.LATENT, layers=(1,), num_kv_heads=1, head_dim=12)
LAYOUT = KvLayout(page_size=4, dtype="bfloat16", dtype_bytes=2, groups=(FULL, LATENT))


def shards(num_ranks: int, layout: KvLayout = LAYOUT) -> list[KvShard]:
    return [KvShard(layout=layout, rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)]


def test_one_rank_keeps_the_canonical_page() -> None:
    [shard] = shards(1)

    assert shard.page_bytes(0) == LAYOUT.payload_bytes(0)
    assert shard.page_bytes(1) == LAYOUT.payload_bytes(1)
    assert shard.token_bytes == LAYOUT.token_bytes


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.INT8])
@pytest.mark.parametrize("num_ranks", [1, 2, 4, 8])
def test_writers_cover_each_byte_of_a_layer_once(codec: Codec, num_ranks: int) -> None:
    layout = replace(LAYOUT, groups=(replace(FULL, head_dim=16),), codec=codec)
    ranks = [shard for shard in shards(num_ranks, layout) if [7][shard.backed_up_rows(0)]]
    parts = [shard.byte_range(0) for shard in ranks]

    written = [byte for part in parts for byte in part]

    assert written == list(range(layout.payload_bytes(0) // 3))


def test_with_more_ranks_than_heads_the_lowest_rank_of_a_head_writes_it() -> None:
    rows = ["a page", "another"]
    holders = [(list(shard.heads(0)), rows[shard.backed_up_rows(0)]) for shard in shards(8)]

    assert holders == [([rank // 2], [] if rank % 2 else rows) for rank in range(8)]


def test_latent_pages_are_whole_on_every_rank_which_divide_the_copies() -> None:
    ranks, rows = shards(4), list(range(10))

    assert [shard.page_bytes(1) for shard in ranks] == [LAYOUT.payload_bytes(1)] * 4
    for share in (KvShard.loaded_rows, KvShard.backed_up_rows):
        assert [rows[share(shard, 1)] for shard in ranks] == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]


def test_a_rank_loads_its_share_of_a_latent_page_and_its_heads_of_a_full_one() -> None:
    [whole], [half, _] = shards(1), shards(2)

    assert whole.loaded_bytes == (LAYOUT.payload_bytes(0), LAYOUT.payload_bytes(1))
    assert half.loaded_bytes == tuple(num_bytes // 2 for num_bytes in whole.loaded_bytes)


def test_heads_that_cannot_be_divided_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"parallel\.tp is 3; 4 kv heads cannot be divided"):
        KvShard(layout=LAYOUT, rank=0, num_ranks=3)
