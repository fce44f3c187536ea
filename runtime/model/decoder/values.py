"""Values that are made of more than a product with their matrix, before they are cached.

Legend: T tokens of the step, X features of queries and keys, Y those of values, D head dim of keys,
E that of values.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from raydix.kernels.ops import ModelOps
from raydix.runtime.model.decoder.rms_norm import RmsNorm
from raydix.runtime.model.spec.spec import ValueSpec


class Values(nn.Module):
    """Makes values of one layer. `key_dim`: the width that heads of keys have in the cache."""

    def __init__(
        self,
        spec: ValueSpec,
        key_dim: int,
        ops: ModelOps,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self._spec = spec
        self._key_dim = key_dim
        self.norm: RmsNorm | None = None
        if spec.norm is not None:
            self.norm = RmsNorm(spec.norm, spec.head_dim, ops, device=device, dtype=dtype)

    def behind(self, qk_TX: Tensor, projected_TY: Tensor) -> Tensor:
        """Queries and keys as they are, then values as wide as keys, filled up with zeros.

        `projected_TY`: what the matrix of values says, or that of keys if these are the values.
        """
        num_tokens, head_dim = projected_TY.shape[0], self._spec.head_dim
        values_NE = projected_TY.reshape(-1, head_dim)
        if self.norm is not None:
            values_NE = self.norm(values_NE)
        if self._spec.scale != 1.0:
            values_NE = values_NE * self._spec.scale

        values_ND = functional.pad(values_NE, (0, self._key_dim - head_dim))
        return torch.cat((qk_TX, values_ND.view(num_tokens, -1)), dim=1)
