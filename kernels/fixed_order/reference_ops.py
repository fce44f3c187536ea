"""Plain PyTorch operations that compute each token by itself: slow, and the same among any others.

Legend: as in `ops`.
"""

from dataclasses import replace

import torch
from torch import Tensor

from raydix.kernels.attention.form import AttentionForm
from raydix.kernels.attention.rows import AttentionRows, DecodeRows
from raydix.kernels.dense.glu_form import GluForm
from raydix.kernels.kv_cache.rotation import QkNorm, RopeTables
from raydix.kernels.ops import ReferenceOps
from raydix.kernels.reference import experts, kv_write, norm, paged_attention
from raydix.kernels.reference.paged_attention import rows_of_columns, rows_of_tiles
from raydix.kernels.weights.linear_weight import LinearWeight


class FixedReferenceOps(ReferenceOps):
    """`ReferenceOps`, one token at a time: libraries add up otherwise for other numbers of rows."""

    has_fixed_order = True

    def linear(self, x_TC: Tensor, weight: LinearWeight) -> Tensor:
        """Multiply by a weight and add its bias, as `ModelOps.linear` says."""
        rows = [super(FixedReferenceOps, self).linear(x_C[None], weight) for x_C in x_TC]
        return torch.cat(rows) if rows else super().linear(x_TC, weight)

    def linear_summands(self, x_TC: Tensor, weight: LinearWeight) -> Tensor:
        """Return the whole product as its only summand; see `ModelOps.linear_summands`."""
        return self.linear(x_TC, weight)

    def rms_norm(
        self, x_TC: Tensor, weight_C: Tensor, eps: float, *, residual_TC: Tensor | None = None
    ) -> Tensor:
        """Normalise by the root mean square, as `ModelOps.rms_norm` says."""
        out_TC = torch.empty_like(x_TC)
        for token in range(len(x_TC)):
            one = slice(token, token + 1)
            residual = None if residual_TC is None else residual_TC[one]
            out_TC[one] = norm.rms_norm(x_TC[one], weight_C, eps, residual_TC=residual)
        return out_TC

    def rotate_and_write_kv(
        self,
        qkv_TX: Tensor,
        rope: RopeTables,
        norm: QkNorm | None,
        pool_PLH2SD: Tensor,
        layer: int,
        cells_T: Tensor,
        *,
        kv_scales_2H: Tensor | None = None,
    ) -> Tensor:
        """Rotate and cache, as `ModelOps.rotate_and_write_kv` says."""
        positions_T = rope.positions_T
        if positions_T is None:
            positions_T = torch.arange(len(qkv_TX), device=qkv_TX.device)
        queries = [
            kv_write.rotate_and_write_kv(
                qkv_TX[token : token + 1],
                replace(rope, positions_T=positions_T[token : token + 1]),
                norm,
                pool_PLH2SD,
                layer,
                cells_T[token : token + 1],
                kv_scales_2H=kv_scales_2H,
            )
            for token in range(len(qkv_TX))
        ]
        return torch.cat(queries)

    def paged_attention(
        self,
        q_TQD: Tensor,
        pool_PLH2SD: Tensor,
        layer: int,
        block_tables_RN: Tensor,
        rows: AttentionRows,
        form: AttentionForm,
    ) -> Tensor:
        """Attend to cached pages, as `ModelOps.paged_attention` says."""
        out_TQD = torch.empty_like(q_TQD)
        for row, token, context in _tokens(rows):
            alone = AttentionRows(decode=(_one(row, context, q_TQD.device),))
            one = slice(token, token + 1)
            out_TQD[one] = paged_attention.paged_attention(
                q_TQD[one], pool_PLH2SD, layer, block_tables_RN, alone, form
            )
        return out_TQD

    def topk_gating(
        self, router_logits_TE: Tensor, num_experts_per_token: int, *, renormalise: bool
    ) -> tuple[Tensor, Tensor]:
        """Choose experts, as `ModelOps.topk_gating` says."""
        chosen = [
            experts.topk_gating(logits_E[None], num_experts_per_token, renormalise=renormalise)
            for logits_E in router_logits_TE
        ]
        weights, ids = zip(*chosen, strict=True)
        return torch.cat(weights), torch.cat(ids)

    def fused_experts(
        self,
        x_TC: Tensor,
        gate_up: LinearWeight,
        down: LinearWeight,
        weights_TK: Tensor,
        expert_ids_TK: Tensor,
        *,
        form: GluForm,
    ) -> Tensor:
        """Run a bank's experts on the rows, as `ModelOps.fused_experts` says."""
        each = [
            super(FixedReferenceOps, self).fused_experts(
                x_TC[one], gate_up, down, weights_TK[one], expert_ids_TK[one], form=form
            )
            for one in (slice(token, token + 1) for token in range(len(x_TC)))
        ]
        return torch.cat(each)


def _tokens(rows: AttentionRows) -> list[tuple[int, int, int]]:
    """Row of the block tables, index in T and context of every token."""
    whole = rows_of_tiles(rows)
    for decode in rows.decode:
        if decode.num_tokens_B is None:
            whole += rows_of_columns(decode)
    return [
        (row.row, row.first_token + index, row.context_tokens - row.num_tokens + index + 1)
        for row in whole
        for index in range(row.num_tokens)
    ]


def _one(row: int, context: int, device: torch.device) -> DecodeRows:
    return DecodeRows(
        rows_B=torch.tensor([row], device=device),
        tokens_B=torch.tensor([0], device=device),
        context_tokens_B=torch.tensor([context], device=device),
        max_context_tokens=context,
    )
