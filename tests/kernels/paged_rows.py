"""Rows of requests over a poisoned pool, and what attention must give for them."""

import torch
from torch import Tensor

from raydix.kernels.attention_form import AttentionForm
from raydix.kernels.attention_rows import AttentionRows, PrefillRow
from raydix.kernels.reference import paged_attention as reference

LAYER, NUM_LAYERS = 1, 2


class PagedRows:
    """Rows of given contexts, whose last `num_tokens` are queries; unused slots hold NaN."""

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        contexts: tuple[int, ...],
        num_tokens: tuple[int, ...],
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """`shape`: KV heads, query heads per KV head, head dim, page size."""
        num_heads, group, self.dim, page_size = shape
        max_pages = -(-max(contexts) // page_size)
        num_pages = len(contexts) * max_pages
        tables_RN = (torch.randperm(num_pages) + 1).view(len(contexts), max_pages)
        pool = torch.randn(num_pages + 1, NUM_LAYERS, num_heads, 2, page_size, self.dim)
        pool[0] = torch.nan
        for table_N, context in zip(tables_RN, contexts, strict=True):
            slots = torch.arange(context, max_pages * page_size)
            pool[table_N[slots // page_size], :, :, :, slots % page_size] = torch.nan

        firsts = [sum(num_tokens[:row]) for row in range(len(num_tokens))]
        self.rows = tuple(
            PrefillRow(
                row=row, first_token=firsts[row], num_tokens=num_tokens[row], context_tokens=context
            )
            for row, context in enumerate(contexts)
        )

        self.scale = self.dim**-0.5
        self.pool_PLH2SD = pool.to(device, dtype)
        self.tables_RN = tables_RN.to(device, torch.int32)
        self.q_TQD = torch.randn(sum(num_tokens), num_heads * group, self.dim).to(device, dtype)
        self.out_TQD = torch.full_like(self.q_TQD, torch.nan)

    def assert_out(self) -> None:
        """Compare `out_TQD` with the twin, computed in float32 from the same numbers."""
        expected_TQD = reference.paged_attention(
            self.q_TQD.float(),
            self.pool_PLH2SD.float(),
            LAYER,
            self.tables_RN,
            AttentionRows(prefill=self.rows, decode=()),
            AttentionForm(scale=self.scale),
        )

        is_float32 = self.q_TQD.dtype == torch.float32
        tolerance = 1e-5 if is_float32 else 2e-2
        torch.testing.assert_close(
            self.out_TQD.float(), expected_TQD, atol=tolerance, rtol=tolerance
        )

    def column(self, values: list[int]) -> Tensor:
        """int64 values on the device."""
        return torch.tensor(values, device=self.q_TQD.device)
