"""What both paged-attention launchers demand of their tensors.

Legend: T tokens of the step, Q query heads, D head dim, P pages, L layers of the KV group, H KV
heads, S tokens per page, R rows of the block tables, N pages of a block table.
"""

import torch
from torch import Tensor

from raydix.kernels.kv_cache.fp8 import FP8


def check_paged_inputs(
    q_TQD: Tensor, pool_PLH2SD: Tensor, layer: int, block_tables_RN: Tensor, out_TQD: Tensor
) -> None:
    """Raise ValueError if a shape, dtype or stride is not what the kernels read."""
    if q_TQD.dtype not in (torch.bfloat16, torch.float32):
        raise ValueError(f"Queries are {q_TQD.dtype}; expected bfloat16 or float32.")
    if (
        pool_PLH2SD.dtype not in (q_TQD.dtype, FP8)
        or out_TQD.dtype != q_TQD.dtype
        or out_TQD.shape != q_TQD.shape
    ):
        raise ValueError(
            f"Pool {pool_PLH2SD.dtype} and out {out_TQD.dtype} {tuple(out_TQD.shape)} do not "
            f"match queries {q_TQD.dtype} {tuple(q_TQD.shape)}."
        )

    if pool_PLH2SD.dim() != 6 or pool_PLH2SD.shape[3] != 2 or not pool_PLH2SD.is_contiguous():
        raise ValueError(
            f"The pool is {tuple(pool_PLH2SD.shape)}; expected contiguous [P, L, H, 2, S, D]."
        )
    _, num_layers, num_heads, _, page_size, head_dim = pool_PLH2SD.shape
    if not 0 <= layer < num_layers:
        raise ValueError(f"Layer {layer} is not among the pool's {num_layers}.")
    if page_size & (page_size - 1):
        raise ValueError(f"The page size is {page_size}; expected a power of two.")

    if q_TQD.dim() != 3 or q_TQD.shape[2] != head_dim or q_TQD.shape[1] % num_heads:
        raise ValueError(
            f"Queries {tuple(q_TQD.shape)} do not match {num_heads} KV heads of {head_dim}."
        )
    if q_TQD.stride(2) != 1 or out_TQD.stride(2) != 1:
        raise ValueError(
            f"Queries and out have strides {q_TQD.stride()}, {out_TQD.stride()}; expected 1 in D."
        )
    if (
        block_tables_RN.dtype != torch.int32
        or block_tables_RN.dim() != 2
        or block_tables_RN.stride(1) != 1
    ):
        raise ValueError(
            f"The block tables are {block_tables_RN.dtype}; expected int32 [R, N], contiguous in N."
        )
