"""Matrices as quantised checkpoints store them, and the floats for which that stands.

Those are computed number by number, in plain loops, by the formula of the format.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

FOUR_BIT_FLOATS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
AWQ_NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)
"""The nibble of each of eight outputs that share a word of AWQ."""


@dataclass(frozen=True)
class QuantisedMatrix:
    """A matrix twice, stored and restored."""

    parts: Mapping[str, Tensor]
    """What is stored, by the end of the name."""
    restored: Tensor
    """What that stands for, float32 [outputs, inputs]."""


def number_by_number(shape: torch.Size, number: Callable[[int, int], float]) -> Tensor:
    """The float32 matrix whose number at (output, input) is this."""
    outputs, inputs = shape
    return torch.tensor(
        [[float(number(n, k)) for k in range(inputs)] for n in range(outputs)], dtype=torch.float32
    )


def block_maxima(weight: Tensor, rows: int, columns: int) -> Tensor:
    """The largest magnitude of each block, of which the last may be short."""
    outputs, inputs = weight.shape
    return torch.tensor(
        [
            [
                float(weight[n : n + rows, k : k + columns].abs().max())
                for k in range(0, inputs, columns)
            ]
            for n in range(0, outputs, rows)
        ]
    )


def fp8_in_blocks(
    weight: Tensor, rows: int, columns: int, scale_name: str = ".weight_scale_inv"
) -> QuantisedMatrix:
    """A scale for each block, so that its largest number is 448."""
    scales = block_maxima(weight, rows, columns) / 448
    wide = scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    stored = (weight / wide[: weight.shape[0], : weight.shape[1]]).to(torch.float8_e4m3fn)
    numbers, by_block = stored.float().numpy(), scales.numpy()
    return QuantisedMatrix(
        {".weight": stored, scale_name: scales},
        number_by_number(
            weight.shape, lambda n, k: numbers[n, k] * by_block[n // rows, k // columns]
        ),
    )


def fp8_per_tensor(
    weight: Tensor, scale_name: str = ".weight_scale_inv", unused: str = ".activation_scale"
) -> QuantisedMatrix:
    """One bfloat16 scale, and one of activations."""
    scale = (weight.abs().max() / 448).bfloat16()
    stored = (weight / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    numbers, factor = stored.float().numpy(), np.float32(scale.float())
    activation_scale = torch.tensor(0.25, dtype=torch.bfloat16)
    return QuantisedMatrix(
        {".weight": stored, scale_name: scale, unused: activation_scale},
        number_by_number(weight.shape, lambda n, k: numbers[n, k] * factor),
    )


def int8_per_output(weight: Tensor) -> QuantisedMatrix:
    """A bfloat16 scale and an int8 zero point for each output."""
    lowest, highest = weight.min(1, keepdim=True).values, weight.max(1, keepdim=True).values
    scales = ((highest - lowest) / 255).bfloat16()
    zero_points = (-128 - lowest / scales.float()).round().clamp(-128, 127).to(torch.int8)
    stored = (weight / scales.float() + zero_points).round().clamp(-128, 127).to(torch.int8)
    numbers, points, factors = stored.numpy(), zero_points.numpy(), scales.float().numpy()
    return QuantisedMatrix(
        {".weight": stored, ".weight_scale": scales, ".weight_zero_point": zero_points},
        number_by_number(
            weight.shape, lambda n, k: (int(numbers[n, k]) - int(points[n, 0])) * factors[n, 0]
        ),
    )


@dataclass(frozen=True)
class Groups:
    """Whole numbers from 0 with a scale and a zero point for each group of inputs."""

    numbers_NK: Tensor
    zero_points_NG: Tensor
    scales_NG: Tensor
    groups_K: Sequence[int]

    @property
    def restored(self) -> Tensor:
        """(number - zero point) * scale."""
        numbers, points = self.numbers_NK.numpy(), self.zero_points_NG.numpy()
        factors, groups = self.scales_NG.float().numpy(), self.groups_K
        return number_by_number(
            self.numbers_NK.shape,
            lambda n, k: (int(numbers[n, k]) - int(points[n, groups[k]])) * factors[n, groups[k]],
        )


def in_groups(
    weight: Tensor,
    *,
    bits: int,
    groups_K: Sequence[int],
    is_symmetric: bool,
    dtype: torch.dtype = torch.bfloat16,
) -> Groups:
    """Quantise each group of inputs by its range. No zero point is 0."""
    columns = torch.tensor(groups_K)
    members = [weight[:, columns == group] for group in range(int(columns.max()) + 1)]
    lowest = torch.stack([each.min(1).values for each in members], dim=1)
    highest = torch.stack([each.max(1).values for each in members], dim=1)
    top, middle = (1 << bits) - 1, 1 << (bits - 1)
    if is_symmetric:
        scales = (torch.maximum(-lowest, highest) / (middle - 1)).to(dtype)
        zero_points = torch.full_like(scales, middle, dtype=torch.int32)
    else:
        scales = ((highest - lowest) / top).to(dtype)
        zero_points = (-lowest / scales.float()).round().clamp(1, top).int()
    numbers = weight / scales.float()[:, columns] + zero_points[:, columns]
    return Groups(numbers.round().clamp(0, top).int(), zero_points, scales, groups_K)


def pack(numbers: Tensor, bits: int, nibbles: Sequence[int] | None = None) -> Tensor:
    """Words of int32, [rows, words], of the numbers of each row, the first in the lowest bits.

    nibbles: where in a word each number is, if not in turn.
    """
    num_rows, num_columns = numbers.shape
    per_word = 32 // bits
    words = [[0] * -(-num_columns // per_word) for _ in range(num_rows)]
    for row, values in enumerate(numbers.tolist()):
        for column, value in enumerate(values):
            place = column % per_word if nibbles is None else nibbles[column % per_word]
            words[row][column // per_word] |= value << (place * bits)
    return torch.tensor(words).to(torch.uint32).view(torch.int32)


def packed(weight: Tensor, *, bits: int, group: int | None, is_symmetric: bool) -> QuantisedMatrix:
    """Pack as compressed-tensors does: along the inputs, and zero points along the outputs."""
    inputs = weight.shape[1]
    groups_K = [0 if group is None else k // group for k in range(inputs)]
    groups = in_groups(weight, bits=bits, groups_K=groups_K, is_symmetric=is_symmetric)
    zero_points = {".weight_zero_point": pack(groups.zero_points_NG.T, bits).T.contiguous()}
    return QuantisedMatrix(
        {
            ".weight_packed": pack(groups.numbers_NK, bits),
            ".weight_scale": groups.scales_NG,
            ".weight_shape": torch.tensor(weight.shape),
            **({} if is_symmetric else zero_points),
        },
        groups.restored,
    )


def pack_four_bit_floats(weight: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """Bytes, low half first, of the nearest four-bit floats, and these numbers."""
    positive = torch.tensor(FOUR_BIT_FLOATS)
    scaled = weight / scales
    codes = (scaled.abs()[..., None] - positive).abs().argmin(-1)
    numbers = positive[codes] * scaled.sign()
    codes = codes + 8 * (scaled < 0)
    return (codes[:, ::2] + 16 * codes[:, 1::2]).to(torch.uint8), numbers


def nvfp4(
    weight: Tensor, *, numbers_name: str, whole_name: str, is_divisor: bool
) -> QuantisedMatrix:
    """A float8 scale for 16 inputs, and one for all, by which they are multiplied or divided."""
    maxima = block_maxima(weight, 1, 16) / 6
    whole = maxima.max() / 448
    scales = (maxima / whole).to(torch.float8_e4m3fn)
    whole = 1 / whole if is_divisor else whole
    exact = scales.float() / whole if is_divisor else scales.float() * whole
    bytes_, numbers = pack_four_bit_floats(weight, exact.repeat_interleave(16, 1))
    values, stored_scales = numbers.numpy(), scales.float().numpy()
    factor = np.float32(whole)

    def number(n: int, k: int) -> float:
        scale = stored_scales[n, k // 16]
        return float(values[n, k] * (scale / factor if is_divisor else scale * factor))

    return QuantisedMatrix(
        {
            numbers_name: bytes_,
            ".weight_scale": scales,
            whole_name: whole.reshape(1) if is_divisor else whole,
        },
        number_by_number(weight.shape, number),
    )


def mxfp4(weight: Tensor) -> QuantisedMatrix:
    """A power of two for 32 inputs, as its exponent and 127."""
    exponents = (block_maxima(weight, 1, 32) / 6).log2().ceil()
    wide = (2.0**exponents).repeat_interleave(32, 1)
    bytes_, numbers = pack_four_bit_floats(weight, wide)
    values, powers = numbers.numpy(), exponents.tolist()
    return QuantisedMatrix(
        {".weight_packed": bytes_, ".weight_scale": (exponents + 127).to(torch.uint8)},
        number_by_number(weight.shape, lambda n, k: values[n, k] * 2.0 ** powers[n][k // 32]),
    )


def gptq(
    weight: Tensor,
    *,
    bits: int,
    group: int | None,
    is_symmetric: bool,
    version: int,
    is_in_any_order: bool = False,
) -> QuantisedMatrix:
    """Words along the inputs, [inputs, outputs]; of version 1 zero points are stored less one."""
    inputs = weight.shape[1]
    groups_K = [0 if group is None else k // group for k in range(inputs)]
    if is_in_any_order:
        # Each group still has as many inputs.
        groups_K = [groups_K[k * 5 % inputs] for k in range(inputs)]
    groups = in_groups(
        weight, bits=bits, groups_K=groups_K, is_symmetric=is_symmetric, dtype=torch.float16
    )
    stored_zero_points = groups.zero_points_NG - (1 if version == 1 else 0)
    return QuantisedMatrix(
        {
            ".qweight": pack(groups.numbers_NK, bits).T.contiguous(),
            ".qzeros": pack(stored_zero_points.T, bits),
            ".scales": groups.scales_NG.T.contiguous(),
            ".g_idx": torch.tensor(groups_K, dtype=torch.int32),
        },
        groups.restored,
    )


def awq(weight: Tensor, *, group: int) -> QuantisedMatrix:
    """Words along the outputs, [inputs, outputs], which are not in turn."""
    groups_K = [k // group for k in range(weight.shape[1])]
    groups = in_groups(weight, bits=4, groups_K=groups_K, is_symmetric=False, dtype=torch.float16)
    return QuantisedMatrix(
        {
            ".qweight": pack(groups.numbers_NK.T, 4, AWQ_NIBBLES),
            ".qzeros": pack(groups.zero_points_NG.T, 4, AWQ_NIBBLES),
            ".scales": groups.scales_NG.T.contiguous(),
        },
        groups.restored,
    )
