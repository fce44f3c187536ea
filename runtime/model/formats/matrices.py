"""Matrices as formats store them, to float32 and on any device.

Legend: N outputs, K inputs.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from raydix.kernels.int4.form import BLOCK, HALF
from raydix.runtime.model.formats.kept_names import KEPT_SCALE, KEPT_ZERO_POINT

_RESTORE = "Set model.quantization to restore"
"""What to do about a matrix that cannot stay as it is."""
_MANTISSA_BITS = 23
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Floats of four bits: the codes 0 to 7; the codes 8 to 15 are the same with a minus."""


def scale_blocks(
    numbers_NK: Tensor, scales: Tensor, block: tuple[int | None, int | None]
) -> Tensor:
    """Multiply each block by its scale; see `spread_blocks`."""
    return numbers_NK * spread_blocks(scales, block, numbers_NK.shape)


def spread_blocks(
    values: Tensor, block: tuple[int | None, int | None], shape: Sequence[int]
) -> Tensor:
    """A value for each number of a matrix of this shape, from one for each block, float32.

    block: outputs and inputs of a block, None for all of them. The last ones may be short.
    """
    outputs, inputs = shape
    rows, columns = (
        size if length is None else length for size, length in zip(shape, block, strict=True)
    )
    grid = values.float().reshape(-(-outputs // rows), -(-inputs // columns))
    return _repeat(_repeat(grid, columns, inputs, dim=1), rows, outputs, dim=0)


def _repeat(values: Tensor, times: int, length: int, dim: int) -> Tensor:
    """Each value so many times, `length` of all."""
    return values.repeat_interleave(times, dim).narrow(dim, 0, length)


def unpack_four_bit_floats(bytes_: Tensor) -> Tensor:
    """Two numbers of each byte of the last dimension, the low half first, float32."""
    numbers = torch.tensor([*_MAGNITUDES, *(-each for each in _MAGNITUDES)], device=bytes_.device)
    codes = torch.stack((bytes_ & 0xF, bytes_ >> 4), dim=-1).flatten(-2)
    return numbers[codes.int()]


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


def scale_groups(
    numbers_NK: Tensor, zero_points_NG: Tensor | int, scales_NG: Tensor, groups: Tensor | int | None
) -> Tensor:
    """(number - zero point) * scale, float32, of the group of each input.

    groups: the group of each input, [K]; or how many inputs that follow each other are one; or None
    if all are. Raises ValueError if an input is of a group that is none, as far as can be told.
    """
    num_inputs = numbers_NK.shape[1]
    if isinstance(groups, Tensor):
        _require_groups(groups, scales_NG.shape[1])

    def spread(values_NG: Tensor) -> Tensor:
        if isinstance(groups, Tensor):
            return values_NG[:, groups.long()]
        return _repeat(values_NG, groups or num_inputs, num_inputs, dim=1)

    if isinstance(zero_points_NG, Tensor):
        zero_points_NG = spread(zero_points_NG)
    return (numbers_NK - zero_points_NG).float().mul_(spread(scales_NG.float()))


def keep_groups(
    numbers_NK: Tensor,
    zero_points_NG: Tensor | int,
    scales_NG: Tensor,
    groups: Tensor | int | None,
    size: int | None,
) -> Iterator[tuple[str, Tensor]]:
    """A matrix of four bits as `kernels.int4.form` has it, by the ends of its tensors' names.

    The arguments are those of `scale_groups`; size: that of a group, None for all inputs. Raises
    ValueError if inputs have other groups, or make no whole blocks.
    """
    num_inputs = numbers_NK.shape[1]
    if num_inputs % BLOCK:
        raise ValueError(f"has {num_inputs} inputs; expected a multiple of {BLOCK}. {_RESTORE}")
    if isinstance(groups, Tensor) and not groups.is_meta:
        in_order = torch.arange(num_inputs, device=groups.device) // (size or num_inputs)
        if not torch.equal(groups.long(), in_order):
            raise ValueError(
                f"has inputs whose groups are in no order; expected {size or num_inputs} inputs of "
                f"each, one group behind another, as the config tells of no other order. {_RESTORE}"
            )

    blocks_NXB = numbers_NK.unflatten(1, (-1, BLOCK))
    low, high = blocks_NXB[..., :HALF], blocks_NXB[..., HALF:]
    if not isinstance(zero_points_NG, Tensor):
        zero_points_NG = torch.full_like(scales_NG, zero_points_NG, dtype=torch.uint8)
    yield ".weight", (low | high << 4).flatten(1).to(torch.uint8)
    yield KEPT_SCALE, scales_NG.float()
    yield KEPT_ZERO_POINT, zero_points_NG.to(torch.uint8)


def _require_groups(groups_K: Tensor, num_groups: int) -> None:
    if groups_K.is_meta or not groups_K.numel():
        return
    lowest, highest = int(groups_K.min()), int(groups_K.max())
    if lowest < 0 or highest >= num_groups:
        raise ValueError(
            f"has inputs of groups {lowest} to {highest}; expected groups from 0 to "
            f"{num_groups - 1}, as there are scales for {num_groups}"
        )
