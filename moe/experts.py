"""The weights of a layer's experts, stacked."""

import torch
from torch import Tensor, nn

from raydix.kernels.expert_biases import ExpertBiases
from raydix.kernels.glu_form import GluForm
from raydix.kernels.ops import ModelOps
from raydix.kernels.rank_share import RankShare
from raydix.kernels.weight_part import WeightPart, cut, first_rank_only


class Experts(nn.Module):
    """Gated experts, with this rank's share of each one's intermediate size.

    `gate_up_EIC`: [experts, 2 x intermediate, hidden], gate first. `down_ECI`: [experts, hidden,
    intermediate]. `biases`: None if they have none.
    """

    def __init__(
        self,
        hidden_size: int,
        num_experts: int,
        intermediate_size: int,
        ops: ModelOps,
        *,
        share: RankShare,
        glu: GluForm,
        bias: bool,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self._ops = ops
        self._glu = glu
        self._share = share
        self._whole_size = intermediate_size
        own_size = share.length(intermediate_size)

        def empty(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, device=device, dtype=dtype), requires_grad=False)

        self.gate_up_EIC = empty(num_experts, 2 * own_size, hidden_size)
        self.down_ECI = empty(num_experts, hidden_size, own_size)
        self.biases: ExpertBiases | None = None
        if bias:
            self.gate_up_bias_EI = empty(num_experts, 2 * own_size)
            self.down_bias_EC = empty(num_experts, hidden_size)
            self.biases = ExpertBiases(gate_up_EI=self.gate_up_bias_EI, down_EC=self.down_bias_EC)

    def forward(self, x_TC: Tensor, weights_TK: Tensor, expert_ids_TK: Tensor) -> Tensor:
        """Weighted sum of the chosen experts' outputs, [T, C]."""
        return self._ops.fused_experts(
            x_TC,
            self.gate_up_EIC,
            self.down_ECI,
            weights_TK,
            expert_ids_TK,
            form=self._glu,
            biases=self.biases,
        )

    def weights(self) -> dict[str, WeightPart]:
        """Parts of all tensors that a checkpoint has."""
        share, size = self._share, self._whole_size
        weights: dict[str, WeightPart] = {}
        for expert, (gate_up_IC, down_CI) in enumerate(
            zip(self.gate_up_EIC, self.down_ECI, strict=True)
        ):
            gate_IC, up_IC = gate_up_IC.chunk(2)
            weights |= {
                f"{expert}.gate.weight": cut(gate_IC, share, size),
                f"{expert}.up.weight": cut(up_IC, share, size),
                f"{expert}.down.weight": cut(down_CI, share, size, dim=1),
            }
            if self.biases is not None:
                gate_I, up_I = self.biases.gate_up_EI[expert].chunk(2)
                weights |= {
                    f"{expert}.gate.bias": cut(gate_I, share, size),
                    f"{expert}.up.bias": cut(up_I, share, size),
                    f"{expert}.down.bias": first_rank_only(self.biases.down_EC[expert], share),
                }
        return weights
