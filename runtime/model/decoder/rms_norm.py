"""The norm between the parts of a layer.

Legend: T tokens of the step, C features that are normed together.
"""

import torch
from torch import Tensor, nn

from raydix.kernels.ops import ModelOps
from raydix.runtime.model.spec.spec import NormSpec


class RmsNorm(nn.Module):
    """Root-mean-square norm over the last dimension, with the residual connection before it."""

    def __init__(
        self, spec: NormSpec, size: int, ops: ModelOps, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.eps = spec.eps
        self._ops = ops
        # A weight of ones in float32 changes nothing, whatever the dtype of what is normed.
        own_dtype = torch.float32 if spec.is_float32 or not spec.has_weight else dtype
        self.weight = nn.Parameter(
            torch.ones(size, device=device, dtype=own_dtype), requires_grad=False
        )

    def forward(self, x_TC: Tensor, residual_TC: Tensor | None = None) -> Tensor:
        """Norm `x_TC`, or the sum that `residual_TC` becomes when `x_TC` is added in place."""
        return self._ops.rms_norm(x_TC, self.weight, self.eps, residual_TC=residual_TC)
