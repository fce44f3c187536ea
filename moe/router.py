"""The router: which experts a token visits, and with what weight."""

import torch
from torch import Tensor, nn

from raydix.kernels.ops import ModelOps


class Router(nn.Module):
    """Scores every expert for each token. `weight_EC`: [experts, hidden]; `bias_E` may be None."""

    def __init__(
        self,
        hidden_size: int,
        num_experts: int,
        experts_per_token: int,
        ops: ModelOps,
        *,
        renormalise: bool,
        bias: bool,
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
        self.bias_E: nn.Parameter | None = None
        if bias:
            self.bias_E = nn.Parameter(
                torch.empty(num_experts, device=device, dtype=dtype), requires_grad=False
            )

    def forward(self, x_TC: Tensor) -> tuple[Tensor, Tensor]:
        """Return (weights_TK float32, logical expert_ids_TK int)."""
        logits_TE = self._ops.linear(x_TC, self.weight_EC, self.bias_E)
        return self._ops.topk_gating(
            logits_TE, self.experts_per_token, renormalise=self.renormalise
        )

    def weights(self) -> dict[str, Tensor]:
        """Views of the parameters, one for each tensor that a checkpoint has."""
        weights: dict[str, Tensor] = {"weight": self.weight_EC}
        if self.bias_E is not None:
            weights["bias"] = self.bias_E
        return weights
