"""The bytes of L1: one tensor of pages per KV group, each a rank's part of a canonical page.

Legend: P pages, L layers of the group, H KV heads of the rank, 2 (key, value), S tokens per page,
D head dim, E numbers of a head's state.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from raydix.runtime.config.kv_layout import GroupKind
from raydix.runtime.config.kv_shard import KvShard

MakePool = Callable[[int, tuple[int, ...], torch.dtype], Tensor]
"""Makes a zeroed contiguous pool of a KV group, in memory that somebody else owns."""


def make_pools(
    shard: KvShard,
    num_pages: Sequence[int],
    device: torch.device,
    make_shared: MakePool | None = None,
    make_own: MakePool | None = None,
) -> tuple[Tensor, ...]:
    """One zeroed contiguous pool per KV group: `[P + 1, L, H, 2, S, D]`, latent `[P + 1, L, S, D]`.

    A pool of states is `[P + 1, L, H, E]`, float32. num_pages: usable pages P of each group's pool.
    Page 0 is the padding page. With one rank `pool[page]` holds exactly the bytes of the canonical
    page. make_shared: for the groups whose pages are equal on several ranks, in memory that peers
    can write to; make_own: for all others.
    """
    pools = []
    for index, pages in enumerate(num_pages):
        is_state = shard.layout.groups[index].kind is GroupKind.STATE
        dtype: torch.dtype = torch.float32 if is_state else getattr(torch, shard.layout.dtype)
        shape = (pages + 1, *_page_shape(shard, index))
        if make_shared is not None and shard.is_shared(index):
            pools.append(make_shared(index, shape, dtype))
        elif make_own is not None:
            pools.append(make_own(index, shape, dtype))
        else:
            pools.append(torch.zeros(shape, dtype=dtype, device=device))
    return tuple(pools)


def _page_shape(shard: KvShard, index: int) -> tuple[int, ...]:
    """The shape of a page of one KV group, in this rank's part."""
    group, page_size = shard.layout.groups[index], shard.layout.page_size
    num_layers, num_heads = len(group.layers), len(shard.heads(index))
    match group.kind:
        case GroupKind.FULL | GroupKind.WINDOW:
            return num_layers, num_heads, 2, page_size, group.head_dim
        case GroupKind.LATENT:
            return num_layers, page_size, group.head_dim
        case GroupKind.STATE:
            return num_layers, num_heads, group.head_dim


def as_bytes(pool: Tensor) -> Tensor:
    """A uint8 view `[P, bytes of a page]` of a pool."""
    return pool.view(len(pool), -1).view(torch.uint8)
