"""The weight of a linear layer as float8 with a scale for each block, as FP8 checkpoints store it.

Legend: O outputs, C inputs, B blocks of outputs, D blocks of inputs. That of a bank of experts has
seats in front: [S, O, C] and [S, B, D].
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from raydix.errors import ConfigError
from raydix.kernels.fp8.form import Block, input_group
from raydix.kernels.weights.rank_share import RankShare
from raydix.kernels.weights.weight import Weight
from raydix.kernels.weights.weight_part import WeightPart, cut

SCALE = "weight_scale"
"""What the scales of a weight are called, beside `weight` and `bias`."""


class ScaledWeight(nn.Module):
    """A rank's part of a matrix of blocks, and of its bias.

    Owns: its tensors. Ranks cut a matrix between blocks, so that each scale stays with its numbers:
    asking for other parts raises ConfigError.
    """

    def __init__(self, numbers: Weight, scales_BD: Tensor, block: Block) -> None:
        super().__init__()
        self.numbers = numbers
        """The matrix, of which each number stands for itself times the scale of its block."""
        self.scales_BD = nn.Parameter(scales_BD, requires_grad=False)
        self.block = block

    @property
    def is_per_output(self) -> bool:
        """Whether each output has scales of its own."""
        return self.block[0] == 1

    @property
    def input_group(self) -> int:
        """The inputs of a token that are rounded by one scale: those of a block, if it has some."""
        return input_group(self.block)

    def tensors(self) -> tuple[Tensor, ...]:
        """All that it consists of."""
        return (*self.numbers.tensors(), self.scales_BD)

    def seat(self, index: int) -> "ScaledWeight":
        """A view of the matrix in one seat of a bank."""
        bias_SO = self.numbers.bias_O
        bias_O = None if bias_SO is None else bias_SO[index]
        numbers = Weight(self.numbers.matrix_OC[index], bias_O)
        return ScaledWeight(numbers, self.scales_BD[index], self.block)

    def split(self, sizes: Sequence[int]) -> list["ScaledWeight"]:
        """Views of so many outputs each: matrices that one product takes and a checkpoint not."""
        rows, _ = self.block
        for size in sizes[:-1]:
            require_blocks("outputs that one product takes together", 0, size, None, rows)
        scales = self.scales_BD.split([-(-size // rows) for size in sizes], dim=-2)
        numbers = self.numbers.split(sizes)
        return [ScaledWeight(*each, self.block) for each in zip(numbers, scales, strict=True)]

    def whole_parts(self) -> dict[str, WeightPart]:
        """The parts of a weight of which every rank keeps the whole."""
        return {**self.numbers.whole_parts(), SCALE: WeightPart(self.scales_BD)}

    def row_parts(self, share: RankShare, num_outputs: int) -> dict[str, WeightPart]:
        """The parts of a weight of which each rank has a share of `num_outputs`."""
        rows, _ = self.block
        length = self.numbers.matrix_OC.shape[-2]
        require_blocks("outputs", share.rank * length, length, num_outputs, rows)
        scales = cut(self.scales_BD, share, -(-num_outputs // rows), dim=-2)
        return {**self.numbers.row_parts(share, num_outputs), SCALE: scales}

    def head_parts(self, heads: range, num_heads: int) -> dict[str, WeightPart]:
        """The parts of a weight whose outputs are heads, of which this rank has `heads`."""
        rows, _ = self.block
        length = self.numbers.matrix_OC.shape[0]
        rows_per_head = length // len(heads)
        start, total = heads.start * rows_per_head, num_heads * rows_per_head
        require_blocks("outputs of heads", start, length, total, rows)
        scales = WeightPart(self.scales_BD, 0, start // rows, -(-total // rows))
        return {**self.numbers.head_parts(heads, num_heads), SCALE: scales}

    def column_parts(self, share: RankShare, num_inputs: int) -> dict[str, WeightPart]:
        """The parts of a weight whose inputs the ranks share; their outputs are added up."""
        length = self.numbers.matrix_OC.shape[-1]
        require_blocks("inputs", share.rank * length, length, num_inputs, self.input_group)
        scales = WeightPart(self.scales_BD)
        if self.block[1] is not None:
            scales = cut(self.scales_BD, share, -(-num_inputs // self.block[1]), dim=-1)
        return {**self.numbers.column_parts(share, num_inputs), SCALE: scales}


def empty_scaled_weight(
    num_outputs: int,
    num_inputs: int,
    *,
    block: Block,
    bias: bool,
    device: torch.device,
    dtype: torch.dtype,
    num_seats: int | None = None,
) -> ScaledWeight:
    """An uninitialised one, which a checkpoint fills. dtype: that of the bias.

    num_seats: of a bank; None: it is none.
    """
    seats = () if num_seats is None else (num_seats,)
    numbers = Weight(
        torch.empty(*seats, num_outputs, num_inputs, device=device, dtype=torch.float8_e4m3fn),
        torch.empty(*seats, num_outputs, device=device, dtype=dtype) if bias else None,
    )
    rows, columns = block
    num_blocks = -(-num_outputs // rows), -(-num_inputs // (columns or num_inputs))
    scales_BD = torch.empty(*seats, *num_blocks, device=device, dtype=torch.float32)
    return ScaledWeight(numbers, scales_BD, block)


def require_blocks(what: str, start: int, length: int, total: int | None, block: int) -> None:
    """Raise ConfigError unless a part begins and ends between blocks, or with the whole."""
    end = start + length
    if start % block or (end % block and end != total):
        raise ConfigError(
            f"{length} {what}, from {start}, are no whole blocks of {block} that share a scale; "
            "expected parts that do not divide a block. Set parallel.tp to a smaller number, or "
            "model.quantization to restore."
        )
