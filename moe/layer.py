"""The sparse feed-forward layer: a router and its experts."""

import torch
from torch import Tensor, nn

from raydix.kernels.ops import ModelOps
from raydix.kernels.routing import Routing
from raydix.moe.experts import Experts
from raydix.moe.router import Router


class MoeLayer(nn.Module):
    """Mixture-of-experts layer whose experts all live on this rank."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        ops: ModelOps,
        *,
        num_experts: int,
        experts_per_token: int,
        routing: Routing,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.router = Router(
            hidden_size,
            num_experts,
            experts_per_token,
            ops,
            routing=routing,
            device=device,
            dtype=dtype,
        )
        self.experts = Experts(
            hidden_size, num_experts, intermediate_size, ops, device=device, dtype=dtype
        )

    def forward(self, x_TC: Tensor) -> Tensor:
        """[T, C] in, [T, C] out."""
        weights_TK, expert_ids_TK = self.router(x_TC)
        out_TC: Tensor = self.experts(x_TC, weights_TK, expert_ids_TK)
        return out_TC

    def weights(self) -> dict[str, Tensor]:
        """Views of the parameters, one for each tensor that a checkpoint has."""
        weights = {f"router.{name}": each for name, each in self.router.weights().items()}
        for expert, gate_up_IC in enumerate(self.experts.gate_up_EIC):
            gate_IC, up_IC = gate_up_IC.chunk(2)
            weights |= {
                f"experts.{expert}.gate.weight": gate_IC,
                f"experts.{expert}.up.weight": up_IC,
                f"experts.{expert}.down.weight": self.experts.down_ECI[expert],
            }
        return weights
