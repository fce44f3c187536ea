"""The bytes of L1: one tensor of pages per KV group, each page in canonical order.

Legend: P pages, L layers of the group, H KV heads, 2 (key, value), S slots per page, D head dim.
"""

import torch
from torch import Tensor

from raydix.runtime.config.kv_layout import GroupKind, KvLayout


def make_pools(layout: KvLayout, num_pages: int, device: torch.device) -> tuple[Tensor, ...]:
    """One zeroed contiguous pool per KV group: `[num_pages + 1, L, H, 2, S, D]` (latent:
    `[num_pages + 1, L, S, D]`).

    Page 0 is the padding page. `pool[page]` holds exactly the bytes of the canonical page.
    """
    dtype: torch.dtype = getattr(torch, layout.dtype)
    pools = []
    for group in layout.groups:
        heads = () if group.kind is GroupKind.LATENT else (group.num_kv_heads, 2)
        shape = (num_pages + 1, len(group.layers), *heads, layout.page_size, group.head_dim)
        pools.append(torch.zeros(shape, dtype=dtype, device=device))
    return tuple(pools)


def as_bytes(pool: Tensor) -> Tensor:
    """A uint8 view `[P, bytes of a page]` of a pool."""
    return pool.view(len(pool), -1).view(torch.uint8)
