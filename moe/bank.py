"""The physical experts of one layer that a rank has.

Legend: S slots, C hidden, I intermediate (gate and up rows together where it stands for both), T
tokens, K experts per token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from raydix.ids import LogicalExpertId
from raydix.kernels.expert_biases import ExpertBiases
from raydix.kernels.glu_form import GluForm
from raydix.kernels.ops import ModelOps
from raydix.kernels.rank_share import RankShare
from raydix.kernels.weight_part import WeightPart, cut, first_rank_only


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpertTensors:
    """Views of all that a slot holds. Biases: None if experts have none."""

    gate_up_IC: Tensor
    """Gate first."""
    down_CI: Tensor
    gate_up_bias_I: Tensor | None
    down_bias_C: Tensor | None

    def all(self) -> tuple[Tensor, ...]:
        """Those that there are, in one order."""
        each = (self.gate_up_IC, self.down_CI, self.gate_up_bias_I, self.down_bias_C)
        return tuple(tensor for tensor in each if tensor is not None)


class ExpertBank(nn.Module):
    """Gated experts in slots, with this rank's share of each one's intermediate size.

    Owns: the slots' weights, whose addresses never change, and what each slot holds. An empty slot
    holds numbers, and no row is sent there.

    `gate_up_EIC`: [slots, 2 x intermediate, hidden], gate first. `down_ECI`: [slots, hidden,
    intermediate]. `biases`: None if they have none.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        ops: ModelOps,
        *,
        num_experts: int,
        held: Sequence[LogicalExpertId | None],
        share: RankShare,
        glu: GluForm,
        bias: bool,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """`num_experts`: of the layer, on all ranks. `held`: which of them each slot is for."""
        super().__init__()
        self._ops = ops
        self._glu = glu
        self._share = share
        self._whole_size = intermediate_size
        self._num_experts = num_experts
        self._held = list(held)
        own_size, num_slots = share.length(intermediate_size), len(held)

        # Nothing fills an empty slot, and what is there by chance may not be a number.
        make = torch.zeros if None in held else torch.empty

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(make(shape, device=device, dtype=dtype), requires_grad=False)

        self.gate_up_EIC = parameter(num_slots, 2 * own_size, hidden_size)
        self.down_ECI = parameter(num_slots, hidden_size, own_size)
        self.biases: ExpertBiases | None = None
        if bias:
            self.gate_up_bias_EI = parameter(num_slots, 2 * own_size)
            self.down_bias_EC = parameter(num_slots, hidden_size)
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

    @property
    def held(self) -> tuple[LogicalExpertId | None, ...]:
        """The logical expert of each slot; None: it is empty."""
        return tuple(self._held)

    def slot_of(self, expert: LogicalExpertId) -> int | None:
        """The slot that holds an expert; None: it lives elsewhere."""
        return self._held.index(expert) if expert in self._held else None

    def tensors(self, slot: int) -> ExpertTensors:
        """Where the weights of a slot are."""
        biases = self.biases
        return ExpertTensors(
            gate_up_IC=self.gate_up_EIC[slot],
            down_CI=self.down_ECI[slot],
            gate_up_bias_I=None if biases is None else biases.gate_up_EI[slot],
            down_bias_C=None if biases is None else biases.down_EC[slot],
        )

    def hold(self, slot: int, expert: LogicalExpertId | None) -> None:
        """Say what a slot holds from now on. Its weights are the caller's to bring, before."""
        self._held[slot] = expert

    def weights(self) -> dict[str, WeightPart]:
        """Parts of all tensors that a checkpoint has; of experts that live elsewhere, nothing."""
        weights: dict[str, WeightPart] = {}
        for expert in map(LogicalExpertId, range(self._num_experts)):
            slot = self.slot_of(expert)
            parts = self._elsewhere() if slot is None else self._parts(self.tensors(slot))
            weights |= {f"{expert}.{name}": part for name, part in parts.items()}
        return weights

    def _parts(self, own: ExpertTensors) -> dict[str, WeightPart]:
        share, size = self._share, self._whole_size
        gate_IC, up_IC = own.gate_up_IC.chunk(2)
        parts = {
            "gate.weight": cut(gate_IC, share, size),
            "up.weight": cut(up_IC, share, size),
            "down.weight": cut(own.down_CI, share, size, dim=1),
        }
        if own.gate_up_bias_I is not None and own.down_bias_C is not None:
            gate_I, up_I = own.gate_up_bias_I.chunk(2)
            parts |= {
                "gate.bias": cut(gate_I, share, size),
                "up.bias": cut(up_I, share, size),
                "down.bias": first_rank_only(own.down_bias_C, share),
            }
        return parts

    def _elsewhere(self) -> dict[str, WeightPart]:
        """As `_parts`, with nothing to keep."""
        size, hidden_size = self._whole_size, self.down_ECI.shape[1]
        no_rows, no_columns = self.down_ECI.new_empty(0, hidden_size), self.down_ECI[0, :, :0]
        parts = {
            "gate.weight": WeightPart(no_rows, 0, 0, size),
            "up.weight": WeightPart(no_rows, 0, 0, size),
            "down.weight": WeightPart(no_columns, 1, 0, size),
        }
        if self.biases is not None:
            no_entries = no_rows[:, 0]
            parts |= {
                "gate.bias": WeightPart(no_entries, 0, 0, size),
                "up.bias": WeightPart(no_entries, 0, 0, size),
                "down.bias": WeightPart(no_entries, 0, 0, hidden_size),
            }
        return parts
