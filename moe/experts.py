"""The weights of a layer's experts, stacked."""

import torch
from torch import Tensor, nn

from raydix.kernels.expert_biases import ExpertBiases
from raydix.kernels.glu_form import GluForm
from raydix.kernels.ops import ModelOps


class Experts(nn.Module):
    """Gated experts.

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
        glu: GluForm,
        bias: bool,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self._ops = ops
        self._glu = glu

        def empty(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, device=device, dtype=dtype), requires_grad=False)

        self.gate_up_EIC = empty(num_experts, 2 * intermediate_size, hidden_size)
        self.down_ECI = empty(num_experts, hidden_size, intermediate_size)
        self.biases: ExpertBiases | None = None
        if bias:
            self.gate_up_bias_EI = empty(num_experts, 2 * intermediate_size)
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

    def weights(self) -> dict[str, Tensor]:
        """Views of the parameters, one for each tensor that a checkpoint has."""
        weights: dict[str, Tensor] = {}
        for expert, (gate_up_IC, down_CI) in enumerate(
            zip(self.gate_up_EIC, self.down_ECI, strict=True)
        ):
            gate_IC, up_IC = gate_up_IC.chunk(2)
            weights |= {
                f"{expert}.gate.weight": gate_IC,
                f"{expert}.up.weight": up_IC,
                f"{expert}.down.weight": down_CI,
            }
            if self.biases is not None:
                gate_I, up_I = self.biases.gate_up_EI[expert].chunk(2)
                weights |= {
                    f"{expert}.gate.bias": gate_I,
                    f"{expert}.up.bias": up_I,
                    f"{expert}.down.bias": self.biases.down_EC[expert],
                }
        return weights
