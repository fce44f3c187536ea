"""The router: which experts a token visits, and with what weight."""

from typing import assert_never

import torch
from torch import Tensor, nn

from raydix.kernels.moe.routing import GroupLimitedRouting, Routing, SoftmaxRouting
from raydix.kernels.ops import ModelOps
from raydix.kernels.weights.weight import empty_weight
from raydix.kernels.weights.weight_part import WeightPart


class Router(nn.Module):
    """Scores every expert for each token.

    `scores`: a row for each expert, and what is added to its score, if anything is.
    `correction_bias_E`: float32, for routings that have one.
    """

    def __init__(
        self,
        hidden_size: int,
        num_experts: int,
        experts_per_token: int,
        ops: ModelOps,
        *,
        routing: Routing,
        bias: bool,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.experts_per_token = experts_per_token
        self.routing = routing
        self._ops = ops

        self.correction_bias_E: nn.Parameter | None = None
        if isinstance(routing, GroupLimitedRouting):
            # Rounded logits of many experts are often equal, so these models score in float32.
            dtype = torch.float32
            if routing.has_correction_bias:
                self.correction_bias_E = nn.Parameter(
                    torch.empty(num_experts, device=device, dtype=dtype), requires_grad=False
                )
        self._dtype = dtype
        self.scores = empty_weight(num_experts, hidden_size, bias=bias, device=device, dtype=dtype)

    def forward(self, x_TC: Tensor) -> tuple[Tensor, Tensor]:
        """Return (weights_TK float32, logical expert_ids_TK int)."""
        logits_TE = self._ops.linear(x_TC.to(self._dtype), self.scores)
        match self.routing:
            case SoftmaxRouting(renormalise=renormalise):
                return self._ops.topk_gating(
                    logits_TE, self.experts_per_token, renormalise=renormalise
                )
            case GroupLimitedRouting() as routing:
                return self._ops.group_limited_gating(
                    logits_TE, self.correction_bias_E, self.experts_per_token, routing
                )
            case _:
                assert_never(self.routing)

    def weights(self) -> dict[str, WeightPart]:
        """The parameters, by what checkpoints call them: whole on every rank."""
        weights = self.scores.whole_parts()
        if self.correction_bias_E is not None:
            weights["e_score_correction_bias"] = WeightPart(self.correction_bias_E)
        return weights
