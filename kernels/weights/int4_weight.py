"""The weight of a linear layer in four bits, with a scale and a zero point per group of inputs.

Legend: O outputs, C inputs, B bytes of two inputs each, G groups of inputs. That of a bank of
experts has seats in front: [S, O, B] and [S, G, O].
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from raydix.kernels.int4.form import BLOCK, Int4Groups
from raydix.kernels.weights.rank_share import RankShare
from raydix.kernels.weights.scaled_weight import SCALE, require_blocks
from raydix.kernels.weights.weight import Weight
from raydix.kernels.weights.weight_part import WeightPart, cut, cut_heads

ZERO_POINT = "weight_zero_point"
"""What the zero points of a weight are called, beside `weight`, `weight_scale` and `bias`."""


class Int4Weight(nn.Module):
    """A rank's part of a matrix of four bits, and of its bias.

    Owns: its tensors. Bytes are as `kernels.int4.form` says. Scales and zero points of the outputs
    of a group lie side by side, as a kernel loads them together. Ranks cut inputs between groups:
    asking for other parts raises ConfigError.
    """

    def __init__(
        self, numbers: Weight, scales_GO: Tensor, zeros_GO: Tensor, form: Int4Groups
    ) -> None:
        super().__init__()
        self.numbers = numbers
        """The bytes [O, B], and the bias."""
        self.scales_GO = nn.Parameter(scales_GO, requires_grad=False)
        self.zeros_GO = nn.Parameter(zeros_GO, requires_grad=False)
        self.form = form

    @property
    def num_inputs(self) -> int:
        """The inputs of this rank's part."""
        return 2 * self.numbers.matrix_OC.shape[-1]

    @property
    def group(self) -> int:
        """The inputs of a group."""
        return self.form.inputs or self.num_inputs

    def tensors(self) -> tuple[Tensor, ...]:
        """All that it consists of."""
        return (*self.numbers.tensors(), self.scales_GO, self.zeros_GO)

    def seat(self, index: int) -> "Int4Weight":
        """A view of the matrix in one seat of a bank."""
        bias_SO = self.numbers.bias_O
        bias_O = None if bias_SO is None else bias_SO[index]
        numbers = Weight(self.numbers.matrix_OC[index], bias_O)
        return Int4Weight(numbers, self.scales_GO[index], self.zeros_GO[index], self.form)

    def split(self, sizes: Sequence[int]) -> list["Int4Weight"]:
        """Views of so many outputs each: matrices that one product takes and a checkpoint not."""
        numbers = self.numbers.split(sizes)
        scales, zeros = (each.split(list(sizes), -1) for each in (self.scales_GO, self.zeros_GO))
        return [Int4Weight(*each, self.form) for each in zip(numbers, scales, zeros, strict=True)]

    def whole_parts(self) -> dict[str, WeightPart]:
        """The parts of a weight of which every rank keeps the whole."""
        groups = {name: WeightPart(each_OG) for name, each_OG in self._of_groups()}
        return {**self.numbers.whole_parts(), **groups}

    def row_parts(self, share: RankShare, num_outputs: int) -> dict[str, WeightPart]:
        """The parts of a weight of which each rank has a share of `num_outputs`."""
        groups = {
            name: cut(each_OG, share, num_outputs, dim=-2) for name, each_OG in self._of_groups()
        }
        return {**self.numbers.row_parts(share, num_outputs), **groups}

    def head_parts(self, heads: range, num_heads: int) -> dict[str, WeightPart]:
        """The parts of a weight whose outputs are heads, of which this rank has `heads`."""
        groups = {name: cut_heads(each_OG, heads, num_heads) for name, each_OG in self._of_groups()}
        return {**self.numbers.head_parts(heads, num_heads), **groups}

    def column_parts(self, share: RankShare, num_inputs: int) -> dict[str, WeightPart]:
        """The parts of a weight whose inputs the ranks share; their outputs are added up."""
        length, group = self.num_inputs, self.form.inputs
        require_blocks("inputs", share.rank * length, length, num_inputs, group or BLOCK)
        if group is None:
            groups = {name: WeightPart(each_OG) for name, each_OG in self._of_groups()}
        else:
            num_groups = -(-num_inputs // group)
            groups = {
                name: cut(each_OG, share, num_groups, dim=-1) for name, each_OG in self._of_groups()
            }
        return {**self.numbers.column_parts(share, num_inputs // 2), **groups}

    def _of_groups(self) -> list[tuple[str, Tensor]]:
        """What a checkpoint calls scales and zero points, and a view of them as it has them."""
        return [(SCALE, self.scales_GO.data.mT), (ZERO_POINT, self.zeros_GO.data.mT)]


def empty_int4_weight(
    num_outputs: int,
    num_inputs: int,
    *,
    form: Int4Groups,
    bias: bool,
    device: torch.device,
    dtype: torch.dtype,
    num_seats: int | None = None,
) -> Int4Weight:
    """An uninitialised one, which a checkpoint fills. dtype: that of the bias.

    num_inputs: a multiple of `BLOCK`. num_seats: of a bank; None: it is none.
    """
    seats = () if num_seats is None else (num_seats,)
    numbers = Weight(
        torch.empty(*seats, num_outputs, num_inputs // 2, device=device, dtype=torch.uint8),
        torch.empty(*seats, num_outputs, device=device, dtype=dtype) if bias else None,
    )
    shape = *seats, -(-num_inputs // (form.inputs or num_inputs)), num_outputs
    scales_GO = torch.empty(shape, device=device, dtype=torch.float32)
    zeros_GO = torch.empty(shape, device=device, dtype=torch.uint8)
    return Int4Weight(numbers, scales_GO, zeros_GO, form)
