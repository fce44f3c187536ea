"""Attention over paged KV.

Legend: T tokens of the step, R rows, C hidden, X heads of queries, keys and values x D, Q query
heads, D head dim, P pages, L layers of the group, H KV heads, 2 keys and values, S tokens per page,
N pages of a block table.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from raydix.kernels.attention.form import AttentionForm
from raydix.kernels.attention.rows import AttentionRows
from raydix.kernels.kv_cache.rotation import QkNorm, RopeTables
from raydix.kernels.ops import ModelOps
from raydix.kernels.reference.kv_write import apply_rope
from raydix.kernels.weights.linear_weight import LinearWeight, WeightMaker
from raydix.kernels.weights.rank_share import RankShare
from raydix.kernels.weights.weight_part import WeightPart, cut_heads, prefixed
from raydix.runtime.model.collectives.protocol import Collectives
from raydix.runtime.model.decoder.rms_norm import RmsNorm
from raydix.runtime.model.decoder.values import Values
from raydix.runtime.model.decoder.whole_qk_norm import WholeQkNorm
from raydix.runtime.model.spec.spec import AttentionSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBatch:
    """What one KV group contributes to a step."""

    pool: Tensor
    """The cache itself, as of `make_pools`; page 0 is padding."""
    block_tables_RN: Tensor
    """int32, page ids per row."""
    cells_T: Tensor
    """int64, page * S + offset where each token's keys and values go; to page 0 if not kept."""
    page_size: int
    """S, which a pool of states does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBatch:
    """Rows of a step, their positions and, per KV group, where their keys and values lie."""

    rows: AttentionRows
    ropes: tuple[RopeTables, ...]
    """One for each of the decoder's rotary embeddings, in their order."""
    groups: tuple[GroupBatch, ...]


class Attention(nn.Module):
    """Grouped-query attention of one layer, with the heads of one rank.

    `layer_in_group` is its place in the group's pool, `rope` that of its tables in a batch's.
    """

    def __init__(
        self,
        spec: AttentionSpec,
        hidden_size: int,
        layer_in_group: int,
        ops: ModelOps,
        *,
        rope: int,
        collectives: Collectives,
        weights: WeightMaker,
    ) -> None:
        super().__init__()
        device, dtype = weights.device, weights.dtype
        self.spec = spec
        self.layer_in_group = layer_in_group
        self.rope = rope
        self._ops = ops
        self._share = share = RankShare(collectives.rank, collectives.size)
        self._heads = share.heads(spec.num_heads)
        self._kv_heads = share.kv_heads(spec.num_kv_heads)

        self.qkv = weights.rows(self._row_counts(), hidden_size, bias=spec.qkv_bias, share=share)
        value_size = len(self._heads) * spec.value_dim
        self.output = weights.columns(
            "output", hidden_size, value_size, bias=spec.output_bias, share=share
        )
        self.gate: LinearWeight | None = None
        if spec.has_gate:
            self.gate = weights.rows(
                {"gate": value_size}, hidden_size, bias=spec.qkv_bias, share=share
            )
        self.values: Values | None = None
        if spec.values is not None and spec.source_layer is None:
            self.values = Values(spec.values, spec.head_dim, ops, device=device, dtype=dtype)

        self.q_norm: RmsNorm | None = None
        self.k_norm: RmsNorm | None = None
        if spec.qk_norm is not None:
            norm, size = spec.qk_norm, spec.head_dim
            self.q_norm = RmsNorm(norm, size, ops, device=device, dtype=dtype)
            if spec.source_layer is None:
                self.k_norm = RmsNorm(norm, size, ops, device=device, dtype=dtype)

        self.whole_norm: WholeQkNorm | None = None
        if spec.whole_qk_norm is not None:
            assert spec.source_layer is None, "keys are normed together where they are made"
            self.whole_norm = WholeQkNorm(
                spec, spec.whole_qk_norm, ops, collectives=collectives, device=device, dtype=dtype
            )

        self.sinks_Q: nn.Parameter | None = None
        if spec.has_sinks:
            self.sinks_Q = nn.Parameter(
                torch.empty(len(self._heads), device=device, dtype=dtype), requires_grad=False
            )
        self.kv_scales_2H: Tensor
        ones_2H = torch.ones(2, len(self._kv_heads), device=device)
        self.register_buffer("kv_scales_2H", ones_2H, persistent=False)
        self._form = self._make_form()

    def _make_form(self) -> AttentionForm:
        spec = self.spec
        return AttentionForm(
            scale=spec.scale,
            window=spec.window,
            soft_cap=spec.soft_cap,
            sinks_Q=self.sinks_Q,
            kv_scales_2H=self.kv_scales_2H,
        )

    def weights(self) -> dict[str, WeightPart]:
        """Parts of all tensors that a checkpoint has."""
        spec, row_counts = self.spec, self._row_counts()
        parts: list[LinearWeight] = [*self.qkv.split(tuple(row_counts.values()))]
        q, *kv = parts
        whole_length = spec.num_heads * spec.value_dim
        weights = {
            **prefixed("output", self.output.column_parts(self._share, whole_length)),
            **prefixed("q", q.head_parts(self._heads, spec.num_heads)),
        }
        for name, weight in zip(list(row_counts)[1:], kv, strict=True):
            weights |= prefixed(name, weight.head_parts(self._kv_heads, spec.num_kv_heads))

        if self.gate is not None:
            weights |= prefixed("gate", self.gate.head_parts(self._heads, spec.num_heads))
        for name, norm in (("q_norm", self.q_norm), ("k_norm", self.k_norm)):
            if norm is not None:
                weights[f"{name}.weight"] = WeightPart(norm.weight)
        if self.whole_norm is not None:
            weights |= self.whole_norm.weights()
        if self.sinks_Q is not None:
            weights["sinks"] = cut_heads(self.sinks_Q, self._heads, spec.num_heads)
        return weights

    def fill_kv_scales(self, scales_2H: Tensor) -> None:
        """Keep this rank's part of the scales of all heads, which keys and values in FP8 have."""
        self.kv_scales_2H.copy_(scales_2H[:, self._kv_heads.start : self._kv_heads.stop])

    def forward(
        self,
        x_TC: Tensor,
        batch: AttentionBatch,
        group: GroupBatch,
        before_cache: Callable[[], None] | None,
    ) -> Tensor:
        """Write this step's keys and values, attend to each row's context, project back to [T, C].

        Returns what this rank's heads add to the sum over ranks, of a single one perhaps its
        summands. `before_cache` runs before the
        layer touches the KV pool.
        """
        rope = batch.ropes[self.rope]
        qkv_TX = self._project(x_TC)
        if before_cache is not None:
            before_cache()

        if self.spec.source_layer is None:
            q_TQD = self._ops.rotate_and_write_kv(
                qkv_TX,
                rope,
                self._norm(),
                group.pool,
                self.layer_in_group,
                group.cells_T,
                kv_scales_2H=self._form.scales_of(group.pool),
            )
        else:
            q_TQD = self._rotated_queries(qkv_TX, rope)
        out_TQD = self._ops.paged_attention(
            rope.scaled(q_TQD),
            group.pool,
            self.layer_in_group,
            group.block_tables_RN,
            batch.rows,
            self._form,
        )
        out_TX = out_TQD[..., : self.spec.value_dim].flatten(1)
        if self.gate is not None:
            out_TX = out_TX * self._ops.linear(x_TC, self.gate).sigmoid_()
        # Summands are for the norm that follows, and not for other ranks.
        linear = self._ops.linear_summands if self._share.size == 1 else self._ops.linear
        return linear(out_TX, self.output)

    def _project(self, x_TC: Tensor) -> Tensor:
        """Queries, keys and values as wide as these, or summands of them; or queries alone."""
        is_whole = self.whole_norm is not None or self.values is not None
        if self.spec.source_layer is None and not is_whole:
            return self._ops.linear_summands(x_TC, self.qkv)
        qkv_TX = self._ops.linear(x_TC, self.qkv)
        if self.whole_norm is not None:
            qkv_TX = self.whole_norm(qkv_TX)
        if self.values is None:
            return qkv_TX
        counts = self._row_counts()
        if "v" not in counts:
            return self.values.behind(qkv_TX, qkv_TX[:, counts["q"] :])
        qk_TX, v_TX = qkv_TX.split((counts["q"] + counts["k"], counts["v"]), dim=1)
        return self.values.behind(qk_TX, v_TX)

    def _rotated_queries(self, queries_TX: Tensor, rope: RopeTables) -> Tensor:
        """Queries of a layer without keys and values of its own, normed and rotated, [T, Q, D]."""
        head_dim = self.spec.head_dim
        if self.q_norm is not None:
            queries_TX = self.q_norm(queries_TX.view(-1, head_dim)).view_as(queries_TX)
        return apply_rope(queries_TX.unflatten(1, (-1, head_dim)), *rope.of_tokens())

    def _row_counts(self) -> dict[str, int]:
        """Rows of the matrices of queries, and of keys and values if there are such, in order."""
        spec, num_kv_heads = self.spec, len(self._kv_heads)
        counts = {"q": len(self._heads) * spec.head_dim}
        if spec.source_layer is None:
            counts["k"] = num_kv_heads * spec.head_dim
            if spec.values is None or not spec.values.are_keys:
                counts["v"] = num_kv_heads * spec.value_dim
        return counts

    def _norm(self) -> QkNorm | None:
        if self.q_norm is None or self.k_norm is None:
            return None
        return QkNorm(
            q_weight_D=self.q_norm.weight, k_weight_D=self.k_norm.weight, eps=self.q_norm.eps
        )
