"""Multi-head latent attention over paged latents (DeepSeek-V2, arXiv:2405.04434, 2.1).

The absorbed form: keys and values are never expanded. The part of a head's query that is not
rotated goes through the head's key matrix, so that its product with a latent is that with the key;
what attention sums up of latents goes through the head's value matrix.

Legend: T tokens of the step, C hidden, Q query heads, D dims of a latent, A its value dims, B dims
of a head's query that are not rotated, E those that are, V value dims of a head.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from raydix.kernels.ops import ModelOps
from raydix.kernels.rank_share import RankShare
from raydix.kernels.reference.kv_write import apply_rope
from raydix.kernels.rotation import RopeTables
from raydix.kernels.weight_part import WeightPart, cut_heads
from raydix.runtime.model.attention import (
    AttentionBatch,
    GroupBatch,
    RmsNorm,
    linear_parameters,
    output_parts,
)
from raydix.runtime.model.spec import LatentAttentionSpec, NormSpec


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
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self._ops = ops
        self.down = linear_parameters(rank, hidden_size, bias=bias, device=device, dtype=dtype)
        self.norm = RmsNorm(norm, rank, ops, device=device, dtype=dtype)
        self.up = linear_parameters(query_size, rank, bias=False, device=device, dtype=dtype)

    def forward(self, x_TC: Tensor) -> Tensor:
        """[T, C] in, all heads' queries out."""
        down_TX = self._ops.linear(x_TC, self.down.weight, self.down.bias)
        return self._ops.linear(self.norm(down_TX), self.up.weight, None)

    def weights(self, heads: range, num_heads: int) -> dict[str, WeightPart]:
        """Parts of all tensors that a checkpoint has; `heads` of `num_heads` are this rank's."""
        down = {f"q_down.{kind}": WeightPart(each) for kind, each in self.down.named_parameters()}
        up = cut_heads(self.up.weight, heads, num_heads)
        return down | {"q_norm.weight": WeightPart(self.norm.weight), "q_up.weight": up}


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
        device: torch.device,
        dtype: torch.dtype,
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
        self.query: LowRankQuery | nn.Linear = (
            linear_parameters(query_size, hidden_size, bias=False, device=device, dtype=dtype)
            if spec.q_lora_rank is None
            else LowRankQuery(
                spec.q_lora_rank,
                spec.norm,
                query_size,
                hidden_size,
                ops,
                bias=spec.bias,
                device=device,
                dtype=dtype,
            )
        )

        self.latent = linear_parameters(
            spec.latent_dim, hidden_size, bias=spec.bias, device=device, dtype=dtype
        )
        self.latent_norm = RmsNorm(spec.norm, spec.kv_lora_rank, ops, device=device, dtype=dtype)
        self.kv_up = linear_parameters(
            num_heads * (spec.qk_nope_head_dim + spec.v_head_dim),
            spec.kv_lora_rank,
            bias=False,
            device=device,
            dtype=dtype,
        )
        self.output = linear_parameters(
            hidden_size,
            num_heads * spec.v_head_dim,
            bias=spec.bias,
            device=device,
            dtype=dtype,
        )

    def weights(self) -> dict[str, WeightPart]:
        """Parts of all tensors that a checkpoint has."""
        heads, num_heads = self._heads, self.spec.num_heads
        query = (
            self.query.weights(heads, num_heads)
            if isinstance(self.query, LowRankQuery)
            else {"q.weight": cut_heads(self.query.weight, heads, num_heads)}
        )
        return {
            **query,
            **{f"latent.{kind}": WeightPart(each) for kind, each in self.latent.named_parameters()},
            "latent_norm.weight": WeightPart(self.latent_norm.weight),
            "kv_up.weight": cut_heads(self.kv_up.weight, heads, num_heads),
            **output_parts(self.output, self._share, num_heads * self.spec.v_head_dim),
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
        spec, layer, rope = self.spec, self.layer_in_group, batch.ropes[self.rope]
        q_TQD = self._absorbed_queries(x_TC, rope)
        latent_TD = self._latents(x_TC, rope)
        if before_cache is not None:
            before_cache()

        self._ops.write_latent(latent_TD, group.pool, layer, group.slot_mapping_T)
        out_TQA = self._ops.latent_attention(
            q_TQD,
            group.pool,
            layer,
            group.block_tables_RN,
            batch.rows,
            scale=spec.scale,
            value_dim=spec.kv_lora_rank,
        )

        _, value_up_QVA = self._up_matrices()
        out_QTV = out_TQA.transpose(0, 1) @ value_up_QVA.transpose(1, 2)
        out_TX = out_QTV.transpose(0, 1).flatten(1)
        return self._ops.linear(out_TX, self.output.weight, self.output.bias)

    def _absorbed_queries(self, x_TC: Tensor, rope: RopeTables) -> Tensor:
        """Queries of all heads in the space of latents, [T, Q, D]."""
        spec = self.spec
        queries_TX = (
            self.query(x_TC)
            if isinstance(self.query, LowRankQuery)
            else self._ops.linear(x_TC, self.query.weight, None)
        )
        nope_TQB, rope_TQE = queries_TX.unflatten(1, (len(self._heads), -1)).split(
            (spec.qk_nope_head_dim, spec.qk_rope_head_dim), dim=-1
        )

        key_up_QBA, _ = self._up_matrices()
        absorbed_QTA = nope_TQB.transpose(0, 1) @ key_up_QBA
        return torch.cat((absorbed_QTA.transpose(0, 1), self._rotated(rope_TQE, rope)), dim=-1)

    def _latents(self, x_TC: Tensor, rope: RopeTables) -> Tensor:
        """What is cached of each token: the normed latent, then the rotated key, [T, D]."""
        latent_TD = self._ops.linear(x_TC, self.latent.weight, self.latent.bias)
        value_TA, key_TE = latent_TD.split(
            (self.spec.kv_lora_rank, self.spec.qk_rope_head_dim), dim=-1
        )
        # Rows of the split are not contiguous, as the norm expects them to be.
        normed_TA = self.latent_norm(value_TA.contiguous())
        return torch.cat((normed_TA, self._rotated(key_TE[:, None], rope)[:, 0]), dim=-1)

    def _rotated(self, x_TQE: Tensor, rope: RopeTables) -> Tensor:
        if self.spec.has_interleaved_pairs:
            # Queries and keys alike are put in the order of halves: their products stay the same.
            x_TQE = x_TQE.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
        return apply_rope(x_TQE, *rope.of_tokens())

    def _up_matrices(self) -> tuple[Tensor, Tensor]:
        """Per head: from a key's dims to the latent's [Q, B, A], and to those of a value [Q, V, A].

        Both are views of one parameter.
        """
        up_QXA = self.kv_up.weight.unflatten(0, (len(self._heads), -1))
        key_up_QBA, value_up_QVA = up_QXA.split(
            (self.spec.qk_nope_head_dim, self.spec.v_head_dim), dim=1
        )
        return key_up_QBA, value_up_QVA
