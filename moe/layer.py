"""The sparse feed-forward layer: a router and its experts."""

import torch
from torch import Tensor, nn

from raydix.kernels.glu_form import GluForm
from raydix.kernels.ops import ModelOps
from raydix.kernels.rank_share import RankShare
from raydix.kernels.routing import Routing
from raydix.kernels.weight_part import WeightPart
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
        bias: bool,
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
            bias=bias,
            device=device,
            dtype=dtype,
        )
        self.experts = Experts(
            hidden_size,
            num_experts,
            intermediate_size,
            ops,
            share=share,
            glu=glu,
            bias=bias,
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
        return {
            **{f"router.{name}": each for name, each in self.router.weights().items()},
            **{f"experts.{name}": each for name, each in self.experts.weights().items()},
        }
