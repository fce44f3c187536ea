import torch

from raydix.runtime.config.kv_layout import GroupKind, KvGroup, KvLayout
from raydix.runtime.config.kv_shard import KvShard
from raydix.runtime.tiers.gpu_pool import as_bytes, make_pools

LAYOUT = KvLayout(
    page_size=4,
    dtype="bfloat16",
    dtype_bytes=2,
    groups=(
        KvGroup(kind=GroupKind.FULL, layers=(0, 2, 3), num_kv_heads=2, head_dim=8),
        KvGroup(kind=GroupKind.LATENT, layers=(1,), num_kv_heads=1, head_dim=12),
    ),
)


def test_each_group_has_a_zeroed_pool_with_a_padding_page() -> None:
    full, latent = make_pools(KvShard(layout=LAYOUT), (5, 5), torch.device("cpu"))

    assert (full.shape, full.dtype) == ((6, 3, 2, 2, 4, 8), torch.bfloat16)
    assert (latent.shape, latent.dtype) == ((6, 1, 4, 12), torch.bfloat16)
    assert not full.any()


def test_bytes_of_a_page_are_a_view_of_the_canonical_size() -> None:
    for group, pool in enumerate(make_pools(KvShard(layout=LAYOUT), (5, 5), torch.device("cpu"))):
        view = as_bytes(pool)
        view[2, 0] = 1

        assert view.shape == (6, LAYOUT.payload_bytes(group))
        assert pool[2].any()
