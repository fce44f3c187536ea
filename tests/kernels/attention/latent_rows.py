"""Rows of requests over a poisoned pool of latents, and what attention must give for them."""

import torch
from torch import Tensor

from raydix.kernels.attention.decode_tiles import DecodeTiles
from raydix.kernels.attention.rows import AttentionRows, PrefillRow, cut_rows
from raydix.kernels.reference import latent_attention as reference

LAYER, NUM_LAYERS = 1, 2


class LatentRows:
    """Rows of given contexts, whose last `num_tokens` are queries; unused cells hold NaN."""

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        contexts: tuple[int, ...],
        num_tokens: tuple[int, ...],
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """`shape`: query heads, dims of a latent, of its value, page size."""
        num_heads, dim, self.value_dim, page_size = shape
        max_pages = -(-max(contexts) // page_size)
        num_pages = len(contexts) * max_pages
        tables_RN = (torch.randperm(num_pages) + 1).view(len(contexts), max_pages)
        pool = torch.randn(num_pages + 1, NUM_LAYERS, page_size, dim)
        pool[0] = torch.nan
        for table_N, context in zip(tables_RN, contexts, strict=True):
            cells = torch.arange(context, max_pages * page_size)
            pool[table_N[cells // page_size], :, cells % page_size] = torch.nan

        firsts = [sum(num_tokens[:row]) for row in range(len(num_tokens))]
        self.rows = tuple(
            PrefillRow(
                row=row, first_token=firsts[row], num_tokens=num_tokens[row], context_tokens=context
            )
            for row, context in enumerate(contexts)
        )

        self.scale = dim**-0.5
        self.pool_PLSD = pool.to(device, dtype)
        self.tables_RN = tables_RN.to(device, torch.int32)
        self.q_TQD = torch.randn(sum(num_tokens), num_heads, dim).to(device, dtype)
        self.out_TQV = torch.full_like(self.q_TQD[..., : self.value_dim], torch.nan).contiguous()

    def tiles(self, tokens_per_tile: int) -> DecodeTiles:
        """One tile per row."""
        counts = self._column([row.num_tokens for row in self.rows])
        return DecodeTiles(
            rows_B=self._column([row.row for row in self.rows]),
            tokens_B=self._column([row.first_token for row in self.rows]),
            context_tokens_B=self._column([row.context_tokens for row in self.rows]),
            num_tokens_B=None if tokens_per_tile == 1 else counts,
            tokens_per_tile=tokens_per_tile,
        )

    def assert_out(self) -> None:
        """Compare `out_TQV` with the twin, computed in float32 from the same numbers."""
        expected_TQV = reference.latent_attention(
            self.q_TQD.float(),
            self.pool_PLSD.float(),
            LAYER,
            self.tables_RN,
            AttentionRows(tiles_X4=torch.from_numpy(cut_rows(self.rows, 2**30))),
            scale=self.scale,
            value_dim=self.value_dim,
        )

        is_float32 = self.q_TQD.dtype == torch.float32
        tolerance = 1e-5 if is_float32 else 2e-2
        torch.testing.assert_close(
            self.out_TQV.float(), expected_TQV, atol=tolerance, rtol=tolerance
        )

    def _column(self, values: list[int]) -> Tensor:
        return torch.tensor(values, device=self.q_TQD.device)
