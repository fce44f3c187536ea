"""The bytes of L1: one tensor of pages per KV group, each a rank's part of a canonical page.

Legend: P pages, L layers of the group, H KV heads of the rank, 2 (key, value), S slots per page,
D head dim.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from raydix.runtime.config.kv_layout import GroupKind
from raydix.runtime.config.kv_shard import KvShard

MakeShared = Callable[[int, tuple[int, ...], torch.dtype], Tensor]
"""Makes a zeroed contiguous pool of a KV group in memory that peers can write to."""


def make_pools(
    shard: KvShard,
    num_pages: Sequence[int],
    device: torch.device,
    make_shared: MakeShared | None = None,
) -> tuple[Tensor, ...]:
    """One zeroed contiguous pool per KV group: `[P + 1, L, H, 2, S, D]`, latent `[P + 1, L, S, D]`.

    num_pages: usable pages P of each group's pool. Page 0 is the padding page. With one rank
    `pool[page]` holds exactly the bytes of the canonical page. make_shared: for the groups whose
    pages are equal on several ranks.
    """
    layout = shard.layout
    dtype: torch.dtype = getattr(torch, layout.dtype)

    pools = []
    for index, (group, pages) in enumerate(zip(layout.groups, num_pages, strict=True)):
        heads = () if group.kind is GroupKind.LATENT else (len(shard.heads(index)), 2)
        shape = (pages + 1, len(group.layers), *heads, layout.page_size, group.head_dim)
        if make_shared is not None and shard.is_shared(index):
            pools.append(make_shared(index, shape, dtype))
        else:
            pools.append(torch.zeros(shape, dtype=dtype, device=device))
    return tuple(pools)


def as_bytes(pool: Tensor) -> Tensor:
    """A uint8 view `[P, bytes of a page]` of a pool."""
    return pool.view(len(pool), -1).view(torch.uint8)
