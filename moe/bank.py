"""The physical experts of one layer that a rank has.

Legend: S seats, C hidden, I intermediate (gate and up rows together where it stands for both), T
tokens, K experts per token.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from raydix.ids import LogicalExpertId
from raydix.kernels.dense.glu_form import GluForm
from raydix.kernels.ops import ModelOps
from raydix.kernels.weights.linear_weight import LinearWeight, WeightMaker
from raydix.kernels.weights.rank_share import RankShare
from raydix.kernels.weights.weight_part import WeightPart, prefixed


class ExpertBank(nn.Module):
    """Gated experts in seats, with this rank's share of each one's intermediate size.

    Owns: the seats' weights, whose addresses never change, and what each seat holds. An empty seat
    holds numbers, and no row is sent there.

    `gate_up`: [seats, 2 x intermediate, hidden], gate first. `down`: [seats, hidden, intermediate].
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
        weights: WeightMaker,
    ) -> None:
        """`num_experts`: of the layer, on all ranks. `held`: which of them each seat is for."""
        super().__init__()
        self._ops = ops
        self._glu = glu
        self._share = share
        self._whole_size = intermediate_size
        self._num_experts = num_experts
        self._held = list(held)
        own_size, num_seats = share.length(intermediate_size), len(held)

        def make(maker: WeightMaker) -> tuple[LinearWeight, LinearWeight]:
            rows = {"gate": own_size, "up": own_size}
            gate_up = maker.rows(rows, hidden_size, bias=bias, share=share, num_seats=num_seats)
            down = maker.columns(
                "down", hidden_size, own_size, bias=bias, share=share, num_seats=num_seats
            )
            return gate_up, down

        self.gate_up, self.down = make(weights)
        # Operations take both in one kind, and without biases if they are not floats.
        if bias or type(self.gate_up) is not type(self.down):
            self.gate_up, self.down = make(weights.of_floats())
        if None in held:
            # Nothing fills an empty seat, and what is there by chance may not be a number.
            for tensor in (*self.gate_up.tensors(), *self.down.tensors()):
                tensor.zero_()

    def forward(self, x_TC: Tensor, weights_TK: Tensor, expert_ids_TK: Tensor) -> Tensor:
        """Weighted sum of the chosen experts' outputs, [T, C]."""
        return self._ops.fused_experts(
            x_TC, self.gate_up, self.down, weights_TK, expert_ids_TK, form=self._glu
        )

    @property
    def held(self) -> tuple[LogicalExpertId | None, ...]:
        """The logical expert of each seat; None: it is empty."""
        return tuple(self._held)

    def seat_of(self, expert: LogicalExpertId) -> int | None:
        """The seat that holds an expert; None: it lives elsewhere."""
        return self._held.index(expert) if expert in self._held else None

    def tensors(self, seat: int) -> tuple[Tensor, ...]:
        """Views of all that a seat holds, in one order."""
        return tuple(each[seat] for each in (*self.gate_up.tensors(), *self.down.tensors()))

    def hold(self, seat: int, expert: LogicalExpertId | None) -> None:
        """Say what a seat holds from now on. Its weights are the caller's to bring, before."""
        self._held[seat] = expert

    def weights(self) -> dict[str, WeightPart]:
        """Parts of all tensors that a checkpoint has; of experts that live elsewhere, nothing."""
        each = self._parts_of_seats()
        elsewhere = {name: part.seat(0).elsewhere() for name, part in each.items()}

        weights: dict[str, WeightPart] = {}
        for expert in map(LogicalExpertId, range(self._num_experts)):
            seat = self.seat_of(expert)
            if seat is None:
                parts = elsewhere
            else:
                parts = {name: part.seat(seat) for name, part in each.items()}
            weights |= prefixed(str(expert), parts)
        return weights

    def _parts_of_seats(self) -> dict[str, WeightPart]:
        """Parts of an expert's tensors, all seats at once."""
        share, size = self._share, self._whole_size
        own_size = share.length(size)
        gate, up = self.gate_up.split((own_size, own_size))
        return {
            **prefixed("gate", gate.row_parts(share, size)),
            **prefixed("up", up.row_parts(share, size)),
            **prefixed("down", self.down.column_parts(share, size)),
        }
