"""The router: which experts a token visits, and with what weight."""

import torch
from torch import Tensor, nn

from raydix.kernels.ops import ModelOps


class Router(nn.Module):
    """Scores every expert for each token. `weight_EC`: [experts, hidden]."""

    def __init__(
        self,
        hidden_size: int,
        num_experts: int,
        experts_per_token: int,
        ops: ModelOps,
        *,
        renormalise: bool,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.experts_per_token = experts_per_token
        self.renormalise = renormalise
        self._ops = ops
        self.weight_EC = nn.Parameter(
            torch.empty(num_experts, hidden_size, device=device, dtype=dtype), requires_grad=False
        )

    def forward(self, x_TC: Tensor) -> tuple[Tensor, Tensor]:
        """Return (weights_TK float32, logical expert_ids_TK int)."""
        logits_TE = self._ops.linear(x_TC, self.weight_EC, None)
        return self._ops.topk_gating(
            logits_TE, self.experts_per_token, renormalise=self.renormalise
        )
