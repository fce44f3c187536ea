"""Checks of what the kernels of four bits are given."""

import torch
from torch import Tensor

from raydix.kernels.int4.form import BLOCK, KERNEL_GROUP
from raydix.kernels.moe.expert_inputs import check_choices
from raydix.kernels.weights.int4_weight import Int4Weight


def check_weight(x_TC: Tensor, weight: Int4Weight, *, num_dimensions: int = 2) -> None:
    """Raise ValueError unless these inputs can be multiplied by this weight."""
    if x_TC.dtype not in (torch.bfloat16, torch.float32) or x_TC.dim() != 2 or x_TC.stride(1) != 1:
        raise ValueError(
            f"Inputs are {x_TC.dtype} {tuple(x_TC.shape)}, strides {x_TC.stride()}; expected "
            "bfloat16 or float32 [T, C], contiguous in C."
        )
    bytes_OB = weight.numbers.matrix_OC
    if (
        bytes_OB.dtype != torch.uint8
        or bytes_OB.dim() != num_dimensions
        or not bytes_OB.is_contiguous()
        or weight.num_inputs != x_TC.shape[1]
        or weight.num_inputs % BLOCK
    ):
        raise ValueError(
            f"Weights are {bytes_OB.dtype} {tuple(bytes_OB.shape)}; expected contiguous uint8 of "
            f"{num_dimensions} dimensions with {x_TC.shape[1]} inputs, a multiple of {BLOCK}, two "
            "in a byte."
        )
    if not weight.form.has_kernel:
        raise ValueError(
            f"Groups are of {weight.form.inputs} inputs; expected a multiple of {KERNEL_GROUP}."
        )
    groups = *bytes_OB.shape[:-2], -(-weight.num_inputs // weight.group), bytes_OB.shape[-2]
    scales, zeros = weight.scales_GO, weight.zeros_GO
    if (
        (scales.dtype, zeros.dtype) != (torch.float32, torch.uint8)
        or not scales.shape == zeros.shape == groups
        or not (scales.is_contiguous() and zeros.is_contiguous())
    ):
        raise ValueError(
            f"Scales and zero points are {scales.dtype} {tuple(scales.shape)} and {zeros.dtype} "
            f"{tuple(zeros.shape)}; expected contiguous float32 and uint8 {groups}."
        )


def words_of(weight: Int4Weight) -> Tensor:
    """The numbers as kernels load them: int32 of eight each, [O, C / 8], or of a bank."""
    return weight.numbers.matrix_OC.view(torch.int32)


def check_experts(
    x_TC: Tensor,
    gate_up: Int4Weight,
    down: Int4Weight,
    weights_TK: Tensor,
    expert_ids_TK: Tensor,
) -> None:
    """Raise ValueError if a shape, dtype or stride differs from what `int4_experts` expects."""
    check_weight(x_TC, gate_up, num_dimensions=3)
    intermediate = down.num_inputs
    check_weight(x_TC.new_empty((0, intermediate)), down, num_dimensions=3)
    num_experts, hidden, _ = down.numbers.matrix_OC.shape
    expected = num_experts, 2 * intermediate
    if gate_up.numbers.matrix_OC.shape[:2] != expected or hidden != x_TC.shape[1]:
        raise ValueError(
            f"Weights are {tuple(gate_up.numbers.matrix_OC.shape)} and "
            f"{tuple(down.numbers.matrix_OC.shape)}; expected [E, 2 x I, C / 2] and [E, C, I / 2]."
        )
    if gate_up.numbers.bias_O is not None or down.numbers.bias_O is not None:
        raise ValueError("The experts have biases; expected experts of four bits without.")
    check_choices(x_TC, weights_TK, expert_ids_TK)
