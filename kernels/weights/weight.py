"""The weight of a linear layer: what a product takes, and how a checkpoint fills it.

Legend: O outputs, C inputs. The weight of a bank of experts has seats in front: [S, O, C].
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from raydix.kernels.weights.rank_share import RankShare
from raydix.kernels.weights.weight_part import WeightPart, cut, cut_heads, first_rank_only


class Weight(nn.Module):
    """A rank's part of a matrix, [O, C] or [S, O, C], and of its bias, as plain floats.

    Owns: its tensors. Layers say what is multiplied by it and how ranks divide it; `ModelOps`
    multiplies, and the parts know what a checkpoint calls the tensors. `matrix_OC` is for what is
    no product with tokens: a look at an embedding's rows, the absorption of a matrix in another.
    """

    def __init__(self, matrix_OC: Tensor, bias_O: Tensor | None) -> None:
        super().__init__()
        self.matrix_OC = nn.Parameter(matrix_OC, requires_grad=False)
        self.bias_O = None if bias_O is None else nn.Parameter(bias_O, requires_grad=False)

    def tensors(self) -> tuple[Tensor, ...]:
        """All that it consists of."""
        return (self.matrix_OC,) if self.bias_O is None else (self.matrix_OC, self.bias_O)

    def split(self, sizes: Sequence[int]) -> list["Weight"]:
        """Views of so many outputs each: matrices that one product takes and a checkpoint not."""
        matrices = self.matrix_OC.split(list(sizes), dim=-2)
        bias_O = self.bias_O
        biases = [None] * len(sizes) if bias_O is None else bias_O.split(list(sizes), dim=-1)
        return [Weight(*each) for each in zip(matrices, biases, strict=True)]

    def whole_parts(self) -> dict[str, WeightPart]:
        """The parts of a weight of which every rank keeps the whole."""
        return {name: WeightPart(tensor) for name, tensor, _ in self._by_outputs()}

    def row_parts(self, share: RankShare, num_outputs: int) -> dict[str, WeightPart]:
        """The parts of a weight of which each rank has a share of `num_outputs`."""
        return {
            name: cut(tensor, share, num_outputs, dim) for name, tensor, dim in self._by_outputs()
        }

    def head_parts(self, heads: range, num_heads: int) -> dict[str, WeightPart]:
        """The parts of a weight whose outputs are heads, of which this rank has `heads`."""
        return {name: cut_heads(tensor, heads, num_heads) for name, tensor, _ in self._by_outputs()}

    def column_parts(self, share: RankShare, num_inputs: int) -> dict[str, WeightPart]:
        """The parts of a weight whose inputs the ranks share; their outputs are added up."""
        parts = {"weight": cut(self.matrix_OC, share, num_inputs, dim=-1)}
        if self.bias_O is not None:
            parts["bias"] = first_rank_only(self.bias_O, share)
        return parts

    def _by_outputs(self) -> list[tuple[str, Tensor, int]]:
        """What a checkpoint calls each tensor, the tensor, and which dimension has the outputs."""
        matrix = ("weight", self.matrix_OC, -2)
        return [matrix] if self.bias_O is None else [matrix, ("bias", self.bias_O, -1)]


def empty_weight(
    num_outputs: int,
    num_inputs: int,
    *,
    bias: bool,
    device: torch.device,
    dtype: torch.dtype,
    num_seats: int | None = None,
) -> Weight:
    """An uninitialised one, which a checkpoint fills. num_seats: of a bank; None: it is none."""
    seats = () if num_seats is None else (num_seats,)
    return Weight(
        torch.empty(*seats, num_outputs, num_inputs, device=device, dtype=dtype),
        torch.empty(*seats, num_outputs, device=device, dtype=dtype) if bias else None,
    )
