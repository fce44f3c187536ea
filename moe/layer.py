"""The sparse feed-forward layer: a router and its experts."""

import torch
from torch import Tensor, nn

from raydix.kernels.glu_form import GluForm
from raydix.kernels.ops import ModelOps
from raydix.kernels.rank_share import RankShare
from raydix.kernels.routing import Routing
from raydix.kernels.weight_part import WeightPart, cut
from raydix.moe.experts import Experts
from raydix.moe.router import Router


class MoeLayer(nn.Module):
    """Mixture-of-experts layer; this rank has its share of every expert's intermediate size."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        ops: ModelOps,
        *,
        num_experts: int,
        experts_per_token: int,
        routing: Routing,
        share: RankShare,
        glu: GluForm,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self._intermediate_size = intermediate_size
        self._share = share
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
            hidden_size,
            num_experts,
            share.length(intermediate_size),
            ops,
            glu=glu,
            device=device,
            dtype=dtype,
        )

    def forward(self, x_TC: Tensor) -> Tensor:
        """[T, C] in; out comes what this rank adds to the sum over ranks, [T, C]."""
        weights_TK, expert_ids_TK = self.router(x_TC)
        out_TC: Tensor = self.experts(x_TC, weights_TK, expert_ids_TK)
        return out_TC

    def weights(self) -> dict[str, WeightPart]:
        """Parts of all tensors that a checkpoint has."""
        share, size = self._share, self._intermediate_size
        weights = {f"router.{name}": each for name, each in self.router.weights().items()}
        for expert, gate_up_IC in enumerate(self.experts.gate_up_EIC):
            gate_IC, up_IC = gate_up_IC.chunk(2)
            weights |= {
                f"experts.{expert}.gate.weight": cut(gate_IC, share, size),
                f"experts.{expert}.up.weight": cut(up_IC, share, size),
                f"experts.{expert}.down.weight": cut(
                    self.experts.down_ECI[expert], share, size, dim=1
                ),
            }
        return weights
