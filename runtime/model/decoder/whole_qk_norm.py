"""The norm of all heads of queries as one vector, and of all keys, before they are rotated.

Legend: T tokens of the step, X heads of queries, keys and values x D, Y those of queries or keys.
"""

import torch
from torch import Tensor, nn

from raydix.kernels.ops import ModelOps
from raydix.kernels.weights.rank_share import RankShare
from raydix.kernels.weights.weight_part import WeightPart, cut_heads
from raydix.runtime.model.collectives.protocol import Collectives
from raydix.runtime.model.decoder.rms_norm import RmsNorm
from raydix.runtime.model.spec.spec import AttentionSpec, NormSpec


class WholeQkNorm(nn.Module):
    """The norms of one layer. Ranks add up the squares of heads, each of which counts once."""

    def __init__(
        self,
        spec: AttentionSpec,
        norm: NormSpec,
        ops: ModelOps,
        *,
        collectives: Collectives,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self._spec = spec
        self._collectives = collectives
        share = RankShare(collectives.rank, collectives.size)
        self._heads = share.heads(spec.num_heads)
        self._kv_heads = share.kv_heads(spec.num_kv_heads)
        # Of ranks that have the same KV head the first one counts it.
        self._counts_keys = share.rank % max(share.size // spec.num_kv_heads, 1) == 0

        query_size, key_size = (len(each) * spec.head_dim for each in (self._heads, self._kv_heads))
        self._sizes = query_size, key_size
        self.q = RmsNorm(norm, query_size, ops, device=device, dtype=dtype)
        self.k = RmsNorm(norm, key_size, ops, device=device, dtype=dtype)

    def weights(self) -> dict[str, WeightPart]:
        """Parts of all tensors that a checkpoint has."""
        spec = self._spec
        return {
            "q_norm.weight": cut_heads(self.q.weight, self._heads, spec.num_heads),
            "k_norm.weight": cut_heads(self.k.weight, self._kv_heads, spec.num_kv_heads),
        }

    def forward(self, qkv_TX: Tensor) -> Tensor:
        """The same, with queries and keys normed."""
        query_size, key_size = self._sizes
        q_TY, k_TY, rest_TY = qkv_TX.split(
            (query_size, key_size, qkv_TX.shape[1] - query_size - key_size), dim=1
        )
        if self._collectives.size == 1:
            return torch.cat((self.q(q_TY), self.k(k_TY), rest_TY), dim=1)

        spec = self._spec
        key_squares_T = k_TY.float().square().sum(-1) * self._counts_keys
        squares_T2 = torch.stack((q_TY.float().square().sum(-1), key_squares_T), dim=-1)
        query_sum_T1, key_sum_T1 = self._collectives.sum(squares_T2).split(1, dim=-1)
        return torch.cat(
            (
                _normed(q_TY, self.q, query_sum_T1 / (spec.num_heads * spec.head_dim)),
                _normed(k_TY, self.k, key_sum_T1 / (spec.num_kv_heads * spec.head_dim)),
                rest_TY,
            ),
            dim=1,
        )


def _normed(x_TY: Tensor, norm: RmsNorm, mean_square_T1: Tensor) -> Tensor:
    """Norm as `reference.norm.rms_norm` does, but by the mean over more than this rank has."""
    scaled_TY = x_TY.float() * torch.rsqrt(mean_square_T1 + norm.eps)
    return (norm.weight * scaled_TY.to(norm.weight.dtype)).to(x_TY.dtype)
