"""Multi-head latent attention over paged latents (DeepSeek-V2, arXiv:2405.04434, 2.1).

The absorbed form expands no keys and values. The part of a head's query that is not rotated goes
through the head's key matrix, so that its product with a latent is that with the key; what
attention sums up of latents goes through the head's value matrix. Rows of many new tokens take the
other form, where that is less work.

Legend: T tokens of the step, C hidden, X other features, Q query heads, H those and the key, D dims
of a latent, A its value dims, B dims of a head's query that are not rotated, E those that are, V
value dims of a head.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from raydix.kernels.attention.rows import AttentionRows, PrefillRow
from raydix.kernels.kv_cache.rotation import RopeTables
from raydix.kernels.ops import ModelOps
from raydix.kernels.reference.kv_write import apply_rope
from raydix.kernels.weights.linear_weight import LinearWeight, WeightMaker
from raydix.kernels.weights.rank_share import RankShare
from raydix.kernels.weights.weight_part import WeightPart, prefixed
from raydix.runtime.model.decoder.attention import AttentionBatch, GroupBatch
from raydix.runtime.model.decoder.rms_norm import RmsNorm
from raydix.runtime.model.spec.spec import LatentAttentionSpec, NormSpec


class LowRankQuery(nn.Module):
    """Queries through a narrow middle, which is normed."""

    def __init__(
        self,
        rank: int,
        norm: NormSpec,
        query_size: int,
        hidden_size: int,
        ops: ModelOps,
        *,
        bias: bool,
        share: RankShare,
        weights: WeightMaker,
    ) -> None:
        super().__init__()
        self._ops = ops
        self.down = weights.whole("q_down", rank, hidden_size, bias=bias)
        self.norm = RmsNorm(norm, rank, ops, device=weights.device, dtype=weights.dtype)
        self.up = weights.rows({"q_up": query_size}, rank, bias=False, share=share)

    def forward(self, x_TC: Tensor) -> Tensor:
        """[T, C] in, all heads' queries out."""
        down_TX = self._ops.linear(x_TC, self.down)
        return self._ops.linear(self.norm(down_TX), self.up)

    def weights(self, heads: range, num_heads: int) -> dict[str, WeightPart]:
        """Parts of all tensors that a checkpoint has; `heads` of `num_heads` are this rank's."""
        return {
            **prefixed("q_down", self.down.whole_parts()),
            "q_norm.weight": WeightPart(self.norm.weight),
            **prefixed("q_up", self.up.head_parts(heads, num_heads)),
        }


class LatentAttention(nn.Module):
    """Latent attention of one layer, with the heads of one rank. Every rank has all latents.

    `layer_in_group` is its place in the group's pool, `rope` that of its tables in a batch's.
    """

    def __init__(
        self,
        spec: LatentAttentionSpec,
        hidden_size: int,
        layer_in_group: int,
        ops: ModelOps,
        *,
        rope: int,
        share: RankShare,
        weights: WeightMaker,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.layer_in_group = layer_in_group
        self.rope = rope
        self._ops = ops
        self._share = share
        self._heads = share.heads(spec.num_heads)
        num_heads = len(self._heads)

        query_size = num_heads * (spec.qk_nope_head_dim + spec.qk_rope_head_dim)
        self.query: LowRankQuery | LinearWeight = (
            weights.rows({"q": query_size}, hidden_size, bias=False, share=share)
            if spec.q_lora_rank is None
            else LowRankQuery(
                spec.q_lora_rank,
                spec.norm,
                query_size,
                hidden_size,
                ops,
                bias=spec.bias,
                share=share,
                weights=weights,
            )
        )

        self.latent = weights.whole("latent", spec.latent_dim, hidden_size, bias=spec.bias)
        self.latent_norm = RmsNorm(
            spec.norm, spec.kv_lora_rank, ops, device=weights.device, dtype=weights.dtype
        )
        # Looked into, not only multiplied by.
        self.kv_up = weights.plain(
            num_heads * (spec.qk_nope_head_dim + spec.v_head_dim), spec.kv_lora_rank, bias=False
        )
        self.output = weights.columns(
            "output", hidden_size, num_heads * spec.v_head_dim, bias=spec.bias, share=share
        )

    def weights(self) -> dict[str, WeightPart]:
        """Parts of all tensors that a checkpoint has."""
        heads, num_heads = self._heads, self.spec.num_heads
        output = self.output.column_parts(self._share, num_heads * self.spec.v_head_dim)
        query = (
            self.query.weights(heads, num_heads)
            if isinstance(self.query, LowRankQuery)
            else prefixed("q", self.query.head_parts(heads, num_heads))
        )
        return {
            **query,
            **prefixed("latent", self.latent.whole_parts()),
            "latent_norm.weight": WeightPart(self.latent_norm.weight),
            **prefixed("kv_up", self.kv_up.head_parts(heads, num_heads)),
            **prefixed("output", output),
        }

    def forward(
        self,
        x_TC: Tensor,
        batch: AttentionBatch,
        group: GroupBatch,
        before_cache: Callable[[], None] | None,
    ) -> Tensor:
        """Write this step's latents, attend to each row's context, project back to [T, C].

        Returns what this rank's heads add to the sum over ranks. `before_cache` runs before the
        layer touches the KV pool.
        """
        nope_TQB, rope_TQE, latent_TD = self._project(x_TC, batch.ropes[self.rope])
        if before_cache is not None:
            before_cache()

        self._ops.write_latent(latent_TD, group.pool, self.layer_in_group, group.cells_T)
        out_TQV = self._attend(nope_TQB, rope_TQE, group, batch.rows)
        return self._ops.linear(out_TQV.flatten(1), self.output)

    def _attend(
        self, nope_TQB: Tensor, rope_TQE: Tensor, group: GroupBatch, rows: AttentionRows
    ) -> Tensor:
        """What each head makes of the values that it sees, [T, Q, V]."""
        spec = self.spec
        out_TQV = (
            self._attend_absorbed(nope_TQB, rope_TQE, group, rows)
            if rows.tiles_X4 is not None or rows.decode
            else nope_TQB.new_empty((*nope_TQB.shape[:2], spec.v_head_dim))
        )
        if rows.expanded:
            self._ops.expanded_latent_attention(
                torch.cat((nope_TQB, rope_TQE), dim=-1),
                group.pool,
                self.layer_in_group,
                group.block_tables_RN,
                rows.expanded,
                self._up_matrix(),
                scale=spec.scale,
                out_TQV=out_TQV,
            )
        return out_TQV

    def _attend_absorbed(
        self, nope_TQB: Tensor, rope_TQE: Tensor, group: GroupBatch, rows: AttentionRows
    ) -> Tensor:
        """The same, in the space of latents. Tokens of expanded rows may be anything."""
        spec = self.spec
        key_up_QBA, value_up_QVA = self._up_matrix().split(
            (spec.qk_nope_head_dim, spec.v_head_dim), dim=1
        )
        absorbed_QTA = nope_TQB.transpose(0, 1) @ key_up_QBA

        out_TQA = self._ops.latent_attention(
            torch.cat((absorbed_QTA.transpose(0, 1), rope_TQE), dim=-1),
            group.pool,
            self.layer_in_group,
            group.block_tables_RN,
            rows,
            scale=spec.scale,
            value_dim=spec.kv_lora_rank,
        )
        out_QTV = out_TQA.transpose(0, 1) @ value_up_QVA.transpose(1, 2)
        return out_QTV.transpose(0, 1)

    def _project(self, x_TC: Tensor, rope: RopeTables) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of all heads, [T, Q, B] that are not rotated and [T, Q, E] that are, and what is
        cached of each token: the normed latent, then the rotated key, [T, D].
        """
        spec = self.spec
        queries_TX = (
            self.query(x_TC)
            if isinstance(self.query, LowRankQuery)
            else self._ops.linear(x_TC, self.query)
        )
        head_dims = (spec.qk_nope_head_dim, spec.qk_rope_head_dim)
        nope_TQB, rope_TQE = queries_TX.unflatten(1, (-1, sum(head_dims))).split(head_dims, dim=-1)

        latent_TD = self._ops.linear(x_TC, self.latent)
        value_TA, key_TE = latent_TD.split((spec.kv_lora_rank, spec.qk_rope_head_dim), dim=-1)
        # The norm expects rows that lie side by side.
        normed_TA = self.latent_norm(value_TA.contiguous())

        # One rotation for all of them takes fewer kernels.
        rotated_THE = self._rotated(torch.cat((rope_TQE, key_TE[:, None]), dim=1), rope)
        return nope_TQB, rotated_THE[:, :-1], torch.cat((normed_TA, rotated_THE[:, -1]), dim=-1)

    def _rotated(self, x_THE: Tensor, rope: RopeTables) -> Tensor:
        if self.spec.has_interleaved_pairs:
            # Queries and keys alike are put in the order of halves: their products stay the same.
            x_THE = x_THE.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
        return apply_rope(x_THE, *rope.of_tokens())

    def _up_matrix(self) -> Tensor:
        """Per head, from a latent to what a key has of it, then to a value, [Q, B + V, A]."""
        made_dims = self.spec.qk_nope_head_dim + self.spec.v_head_dim
        return self.kv_up.matrix_OC.unflatten(0, (-1, made_dims))


def pays_to_expand(spec: LatentAttentionSpec, row: PrefillRow) -> bool:
    """Whether a row takes less arithmetic if its context is expanded to keys and values first.

    Counted per head, in multiplications.
    """
    absorbed = spec.latent_dim + spec.kv_lora_rank
    expanded = spec.qk_nope_head_dim + spec.qk_rope_head_dim + spec.v_head_dim
    num_pairs = row.num_tokens * row.context_tokens - row.num_tokens**2 // 2

    made_dims = spec.qk_nope_head_dim + spec.v_head_dim
    expansion = row.context_tokens * spec.kv_lora_rank * made_dims
    return num_pairs * (absorbed - expanded) > expansion
