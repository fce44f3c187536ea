"""What ends a layer, once its feed-forward has been added to the residual stream."""

import torch
from torch import nn

from raydix.kernels.weights.weight_part import WeightPart
from raydix.runtime.model.decoder.residual_stream import ResidualStream


class OutputScale(nn.Module):
    """Multiplies the residual stream by one weight."""

    def __init__(self, *, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.scale_1 = nn.Parameter(torch.empty(1, device=device, dtype=dtype), requires_grad=False)

    def forward(self, stream: ResidualStream) -> None:
        """Multiply in place."""
        stream.settled().mul_(self.scale_1)

    def weights(self) -> dict[str, WeightPart]:
        """All tensors that a checkpoint has."""
        return {"layer_scalar": WeightPart(self.scale_1)}
