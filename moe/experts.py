"""The weights of a layer's experts, stacked."""

import torch
from torch import Tensor, nn

from raydix.kernels.glu_form import GluForm
from raydix.kernels.ops import ModelOps


class Experts(nn.Module):
    """Gated experts.

    `gate_up_EIC`: [experts, 2 x intermediate, hidden], gate first. `down_ECI`: [experts, hidden,
    intermediate].
    """

    def __init__(
        self,
        hidden_size: int,
        num_experts: int,
        intermediate_size: int,
        ops: ModelOps,
        *,
        glu: GluForm,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self._ops = ops
        self._glu = glu
        self.gate_up_EIC = nn.Parameter(
            torch.empty(
                num_experts, 2 * intermediate_size, hidden_size, device=device, dtype=dtype
            ),
            requires_grad=False,
        )
        self.down_ECI = nn.Parameter(
            torch.empty(num_experts, hidden_size, intermediate_size, device=device, dtype=dtype),
            requires_grad=False,
        )

    def forward(self, x_TC: Tensor, weights_TK: Tensor, expert_ids_TK: Tensor) -> Tensor:
        """Weighted sum of the chosen experts' outputs, [T, C]."""
        return self._ops.fused_experts(
            x_TC, self.gate_up_EIC, self.down_ECI, weights_TK, expert_ids_TK, self._glu
        )
