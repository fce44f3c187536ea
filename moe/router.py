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
    `correction_bias_E` and `expert_scales_E`: float32, for routings that have them.
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
        self.expert_scales_E: nn.Parameter | None = None
        if isinstance(routing, SoftmaxRouting) and routing.has_expert_scales:
            self.expert_scales_E = nn.Parameter(
                torch.empty(num_experts, device=device, dtype=torch.float32), requires_grad=False
            )
        self._dtype = dtype
        self.scores = empty_weight(num_experts, hidden_size, bias=bias, device=device, dtype=dtype)

    def forward(self, x_TC: Tensor) -> tuple[Tensor, Tensor]:
        """Return (weights_TK float32, logical expert_ids_TK int)."""
        logits_TE = self._ops.linear(x_TC.to(self._dtype), self.scores)
        match self.routing:
            case SoftmaxRouting(renormalise=renormalise):
                weights_TK, ids_TK = self._ops.topk_gating(
                    logits_TE, self.experts_per_token, renormalise=renormalise
                )
                if self.expert_scales_E is not None:
                    weights_TK = weights_TK * self.expert_scales_E[ids_TK]
                return weights_TK, ids_TK
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
        if self.expert_scales_E is not None:
            weights["expert_scales"] = WeightPart(self.expert_scales_E)
        return weights
