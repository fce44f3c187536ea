# mypy: disable-error-code="no-untyped-def"
"""The write of a step's latents into the paged cache.

Legend: T tokens of the step, D dims of a latent, P pages, L layers of the KV group, S tokens per
page.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


def write_latent(latent_TD: Tensor, pool_PLSD: Tensor, layer: int, cells_T: Tensor) -> None:
    """Scatter this step's latents of one layer into the paged cache, in place.

    latent_TD: of the pool's dtype, contiguous in D. cells_T: int32 or int64, page * S +
    offset; -1 writes nothing. Raises ValueError if a shape, dtype or stride differs.
    """
    if pool_PLSD.dim() != 4 or not pool_PLSD.is_contiguous():
        raise ValueError(f"The pool is {tuple(pool_PLSD.shape)}; expected contiguous [P, L, S, D].")
    _, num_layers, page_size, dim = pool_PLSD.shape
    if not 0 <= layer < num_layers:
        raise ValueError(f"Layer {layer} is not among the pool's {num_layers}.")

    if (
        latent_TD.dtype != pool_PLSD.dtype
        or latent_TD.dim() != 2
        or latent_TD.shape[1] != dim
        or latent_TD.stride(1) != 1
    ):
        raise ValueError(
            f"Latents are {latent_TD.dtype} {tuple(latent_TD.shape)}; expected {pool_PLSD.dtype} "
            f"[T, {dim}], contiguous in D."
        )
    if (
        cells_T.shape != latent_TD.shape[:1]
        or cells_T.dtype not in (torch.int32, torch.int64)
        or not cells_T.is_contiguous()
    ):
        raise ValueError(
            f"The cells are {cells_T.dtype} {tuple(cells_T.shape)}; expected contiguous ints [T]."
        )
    if latent_TD.shape[0] == 0:
        return

    _write[(latent_TD.shape[0],)](
        latent_TD,
        pool_PLSD,
        cells_T,
        latent_TD.stride(0),
        pool_PLSD.stride(0),
        layer * pool_PLSD.stride(1),
        PAGE=page_size,
        DIM=dim,
        BLOCK_DIM=triton.next_power_of_2(dim),
        num_warps=4,
    )


@triton.jit
def _write(
    latent_ptr,
    pool_ptr,
    cells_ptr,
    latent_stride,
    page_stride,
    layer_offset,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    cell = tl.load(cells_ptr + token).to(tl.int64)
    if cell >= 0:
        dim = tl.arange(0, BLOCK_DIM)
        is_dim = dim < DIM
        latent = tl.load(latent_ptr + token * latent_stride + dim, mask=is_dim)
        cache_ptr = pool_ptr + cell // PAGE * page_stride + layer_offset + cell % PAGE * DIM
        tl.store(cache_ptr + dim, latent, mask=is_dim)
