"""Rows of requests over a poisoned pool, and what attention must give for them."""

from typing import Any

import torch
from torch import Tensor

from raydix.kernels.attention.form import AttentionForm
from raydix.kernels.attention.rows import AttentionRows, PrefillRow, cut_rows
from raydix.kernels.kv_cache.fp8 import FP8
from raydix.kernels.reference import paged_attention as reference

LAYER, NUM_LAYERS = 1, 2
FORMS: dict[str, dict[str, Any]] = {
    "window of one token": {"window": 1},
    "window that ends inside a page": {"window": 37},
    "window of whole pages": {"window": 64},
    "window beyond all contexts": {"window": 10_000},
    "soft cap": {"soft_cap": 0.7},
    "sinks": {"has_sinks": True},
    "all at once": {"window": 50, "soft_cap": 0.9, "has_sinks": True},
}
"""Options of `PagedRows`."""


class PagedRows:
    """Rows of given contexts, whose last `num_tokens` are queries.

    Unused cells hold NaN, and so does page 0, which stands for pages behind the window.
    """

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        contexts: tuple[int, ...],
        num_tokens: tuple[int, ...],
        *,
        dtype: torch.dtype,
        device: torch.device,
        window: int | None = None,
        soft_cap: float | None = None,
        has_sinks: bool = False,
        is_fp8: bool = False,
    ) -> None:
        """`shape`: KV heads, query heads per KV head, head dim, page size.

        `is_fp8`: of keys and values, with scales.
        """
        num_heads, group, self.dim, page_size = shape
        max_pages = -(-max(contexts) // page_size)
        num_pages = len(contexts) * max_pages
        tables_RN = (torch.randperm(num_pages) + 1).view(len(contexts), max_pages)
        pool = torch.randn(num_pages + 1, NUM_LAYERS, num_heads, 2, page_size, self.dim)
        pool[0] = torch.nan
        for row, (table_N, context) in enumerate(zip(tables_RN, contexts, strict=True)):
            cells = torch.arange(context, max_pages * page_size)
            pool[table_N[cells // page_size], :, :, :, cells % page_size] = torch.nan

            if window is not None:
                first_position = context - num_tokens[row]
                table_N[: max(first_position + 1 - window, 0) // page_size] = 0

        firsts = [sum(num_tokens[:row]) for row in range(len(num_tokens))]
        self.rows = tuple(
            PrefillRow(
                row=row, first_token=firsts[row], num_tokens=num_tokens[row], context_tokens=context
            )
            for row, context in enumerate(contexts)
        )

        sinks_Q = torch.linspace(-2, 2, num_heads * group)
        self.form = AttentionForm(
            scale=self.dim**-0.5,
            window=window,
            soft_cap=soft_cap,
            sinks_Q=sinks_Q.to(device, dtype) if has_sinks else None,
            kv_scales_2H=(torch.rand(2, num_heads) + 0.5).to(device) if is_fp8 else None,
        )
        self.pool_PLH2SD = pool.to(device, FP8 if is_fp8 else dtype)
        self.tables_RN = tables_RN.to(device, torch.int32)
        self.q_TQD = torch.randn(sum(num_tokens), num_heads * group, self.dim).to(device, dtype)
        self.out_TQD = torch.full_like(self.q_TQD, torch.nan)

    def assert_out(self) -> None:
        """Compare `out_TQD` with the twin, computed in float32 from the same numbers."""
        pool_PLH2SD = self.pool_PLH2SD
        expected_TQD = reference.paged_attention(
            self.q_TQD.float(),
            pool_PLH2SD if pool_PLH2SD.dtype == FP8 else pool_PLH2SD.float(),
            LAYER,
            self.tables_RN,
            AttentionRows(tiles_X4=torch.from_numpy(cut_rows(self.rows, 2**30))),
            self.form,
        )

        is_float32 = self.q_TQD.dtype == torch.float32
        tolerance = 1e-5 if is_float32 else 2e-2
        torch.testing.assert_close(
            self.out_TQD.float(), expected_TQD, atol=tolerance, rtol=tolerance
        )

    def column(self, values: list[int]) -> Tensor:
        """int64 values on the device."""
        return torch.tensor(values, device=self.q_TQD.device)
