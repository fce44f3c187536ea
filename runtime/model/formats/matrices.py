"""Matrices as formats store them, to float32 and on any device.

Beside what is stored and what is made of it a few rows at a time are held: what each number goes
through takes many times its bits.

Legend: N outputs, K inputs.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from raydix.kernels.int4.form import BLOCK, HALF
from raydix.runtime.model.formats.kept_names import KEPT_SCALE, KEPT_ZERO_POINT

_RESTORE = "Set model.quantization to restore"
"""What to do about a matrix that cannot stay as it is."""
_BLOCK_NUMBERS = 1 << 22
"""The numbers of the rows that are made at a time: 16 MiB of float32, beside which the launches of
kernels are short.
"""
_ROWS = 8
"""The outputs in a word, where words hold several."""
_MANTISSA_BITS = 23
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Floats of four bits: the codes 0 to 7; the codes 8 to 15 are the same with a minus."""


def made_by_rows(
    shape: Sequence[int],
    make: Callable[[slice], Tensor],
    *,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """A matrix of this shape, a few rows of which are made at a time.

    So no more than one of its size is ever held. `make` gets slices that begin at multiples of
    `_ROWS`, and returns these rows.
    """
    num_rows, num_columns = shape
    made = torch.empty(num_rows, num_columns, dtype=dtype, device=device)
    step = max(_BLOCK_NUMBERS // max(num_columns, 1) // _ROWS, 1) * _ROWS
    for first in range(0, num_rows, num_rows if made.is_meta else step):
        rows = slice(first, min(first + step, num_rows))
        made[rows] = make(rows)
    return made


def spread_blocks(
    values: Tensor, block: tuple[int | None, int | None], shape: Sequence[int], rows: slice
) -> Tensor:
    """A value for each number of some rows of a matrix, from one for each block, float32.

    block: outputs and inputs of a block, None for all of them. The last ones may be short.
    """
    outputs, inputs = shape
    height, width = (
        size if length is None else length for size, length in zip(shape, block, strict=True)
    )
    grid = values.reshape(-(-outputs // height), -(-inputs // width))
    first, last = rows.start // height, (rows.stop - 1) // height
    places = torch.arange(rows.start, rows.stop, device=values.device) // height - first
    return spread_groups(grid[first : last + 1].float()[places], width, inputs)


def spread_groups(values_NG: Tensor, size: int, num_inputs: int) -> Tensor:
    """The value of its group for each input; the last group may be short."""
    return values_NG.repeat_interleave(size, 1).narrow(1, 0, num_inputs)


def unpack_four_bit_floats(bytes_: Tensor) -> Tensor:
    """Two numbers of each byte of the last dimension, the low half first, float32."""
    numbers = torch.tensor([*_MAGNITUDES, *(-each for each in _MAGNITUDES)], device=bytes_.device)
    codes = torch.stack((bytes_ & 0xF, bytes_ >> 4), dim=-1).flatten(-2)
    return numbers[codes.int()]


def restore_four_bit_floats(
    bytes_NB: Tensor, scales: Callable[[slice], Tensor], size: int
) -> Tensor:
    """Numbers of half a byte times the scales of so many inputs each, float32.

    `scales`: those of some rows, float32, [rows, groups].
    """
    outputs, inputs = bytes_NB.shape[0], bytes_NB.shape[1] * 2

    def make(rows: slice) -> Tensor:
        return unpack_four_bit_floats(bytes_NB[rows]) * spread_groups(scales(rows), size, inputs)

    return made_by_rows((outputs, inputs), make, device=bytes_NB.device)


def powers_of_two(exponents: Tensor) -> Tensor:
    """2 to the power of (exponent - 127), exactly on every device: as float32 itself has them."""
    bits = exponents.int() << _MANTISSA_BITS
    # The lowest power has no exponent bits left: it is half of the smallest normal number.
    return torch.where(exponents == 0, 1 << (_MANTISSA_BITS - 1), bits).view(torch.float32)


def unpack_integers(words: Tensor, bits: int) -> Tensor:
    """The numbers of so many bits, from 0, in the words of the last dimension, lowest bits first.

    words: int32; bits: a divisor of 32. Returns int32.
    """
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=words.device)
    return (words[..., None] >> shifts & (1 << bits) - 1).flatten(-2)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupedIntegers:
    """A matrix of whole numbers from 0, of which groups of inputs have a scale and a zero point."""

    num_inputs: int
    numbers: Callable[[slice], Tensor]
    """Some outputs' numbers, int32, from a multiple of `_ROWS` on."""
    zero_points_NG: Tensor | int
    scales_NG: Tensor
    groups: Tensor | int | None
    """The group of each input, [K]; or how many inputs that follow each other are one; or None if
    all are.
    """


def scale_groups(matrix: GroupedIntegers) -> Tensor:
    """(number - zero point) * scale, float32, of the group of each input.

    Raises ValueError if an input is of a group that is none, as far as can be told.
    """
    groups, num_inputs = matrix.groups, matrix.num_inputs
    num_outputs, num_groups = matrix.scales_NG.shape
    if isinstance(groups, Tensor):
        _require_groups(groups, num_groups)

    def spread(values_NG: Tensor) -> Tensor:
        if isinstance(groups, Tensor):
            return values_NG[:, groups.long()]
        return spread_groups(values_NG, groups or num_inputs, num_inputs)

    def make(rows: slice) -> Tensor:
        zero_points: Tensor | int = matrix.zero_points_NG
        if isinstance(zero_points, Tensor):
            zero_points = spread(zero_points[rows])
        numbers = (matrix.numbers(rows) - zero_points).float()
        return numbers.mul_(spread(matrix.scales_NG[rows].float()))

    return made_by_rows((num_outputs, num_inputs), make, device=matrix.scales_NG.device)


def keep_groups(matrix: GroupedIntegers, size: int | None) -> Iterator[tuple[str, Tensor]]:
    """A matrix of four bits as `kernels.int4.form` has it, by the ends of its tensors' names.

    size: that of a group, None for all inputs. Raises ValueError if inputs have other groups, or
    make no whole blocks.
    """
    groups, num_inputs = matrix.groups, matrix.num_inputs
    zero_points, scales_NG = matrix.zero_points_NG, matrix.scales_NG
    if num_inputs % BLOCK:
        raise ValueError(f"has {num_inputs} inputs; expected a multiple of {BLOCK}. {_RESTORE}")
    if isinstance(groups, Tensor) and not groups.is_meta:
        in_order = torch.arange(num_inputs, device=groups.device) // (size or num_inputs)
        if not torch.equal(groups.long(), in_order):
            raise ValueError(
                f"has inputs whose groups are in no order; expected {size or num_inputs} inputs of "
                f"each, one group behind another, as the config tells of no other order. {_RESTORE}"
            )

    def make(rows: slice) -> Tensor:
        blocks_NXB = matrix.numbers(rows).unflatten(1, (-1, BLOCK))
        low, high = blocks_NXB[..., :HALF], blocks_NXB[..., HALF:]
        return (low | high << 4).flatten(1).to(torch.uint8)

    shape = len(scales_NG), num_inputs // 2
    yield ".weight", made_by_rows(shape, make, device=scales_NG.device, dtype=torch.uint8)
    yield KEPT_SCALE, scales_NG.float()
    if not isinstance(zero_points, Tensor):
        zero_points = torch.full_like(scales_NG, zero_points, dtype=torch.uint8)
    yield KEPT_ZERO_POINT, zero_points.to(torch.uint8)


def _require_groups(groups_K: Tensor, num_groups: int) -> None:
    if groups_K.is_meta or not groups_K.numel():
        return
    lowest, highest = int(groups_K.min()), int(groups_K.max())
    if lowest < 0 or highest >= num_groups:
        raise ValueError(
            f"has inputs of groups {lowest} to {highest}; expected groups from 0 to "
            f"{num_groups - 1}, as there are scales for {num_groups}"
        )
