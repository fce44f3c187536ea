"""Checks of what the kernels of experts are given.

Legend: as in `grouped_gemm`.
"""

import torch
from torch import Tensor

from raydix.kernels.moe.expert_biases import ExpertBiases

INTERLEAVED = 8
"""Gate and up rows alternate in runs of this many, so that one thread holds both of a product."""
_ALIGNMENT_BYTES = 16
"""The size of which a row of weights must be a multiple, as a tensor map demands."""

_LARGE_EXPERT_BYTES = 16 << 20
"""The size of one expert's weights from which on L2 does not hold them until its next block."""
_BLOCKS_TOGETHER = 8
"""The number of a large expert's blocks whose tiles of the same columns run one after another."""


def check_experts(
    x_TC: Tensor, gate_up_EIC: Tensor, down_ECI: Tensor, weights_TK: Tensor, expert_ids_TK: Tensor
) -> None:
    """Raise ValueError if a shape, dtype or stride differs from what `fused_experts` expects."""
    tensors = [x_TC, gate_up_EIC, down_ECI]
    if x_TC.dtype not in (torch.bfloat16, torch.float32) or any(
        t.dtype != x_TC.dtype for t in tensors
    ):
        raise ValueError(
            f"Rows and weights are {[t.dtype for t in tensors]}; expected one of bfloat16, float32."
        )
    if x_TC.dim() != 2 or x_TC.stride(1) != 1 or gate_up_EIC.dim() != 3 or down_ECI.dim() != 3:
        raise ValueError(
            f"Shapes are {[tuple(t.shape) for t in tensors]}; expected [T, C], [E, 2 x I, C], [E, "
            f"C, I]."
        )

    num_experts, hidden, intermediate = down_ECI.shape
    if gate_up_EIC.shape != (num_experts, 2 * intermediate, hidden) or x_TC.shape[1] != hidden:
        raise ValueError(
            f"Shapes are {[tuple(t.shape) for t in tensors]}; expected [T, C], [E, 2 x I, C], [E, "
            f"C, I]."
        )

    if not gate_up_EIC.is_contiguous() or not down_ECI.is_contiguous():
        raise ValueError(
            f"Weights have strides {gate_up_EIC.stride()}, {down_ECI.stride()}; expected "
            f"contiguous ones."
        )
    if any(size * x_TC.element_size() % _ALIGNMENT_BYTES for size in (hidden, intermediate)):
        raise ValueError(
            f"C is {hidden}, I {intermediate}; expected rows of a multiple of {_ALIGNMENT_BYTES} "
            f"bytes."
        )
    if intermediate % INTERLEAVED:
        raise ValueError(f"I is {intermediate}; expected a multiple of {INTERLEAVED}.")

    check_choices(x_TC, weights_TK, expert_ids_TK)


def check_choices(x_TC: Tensor, weights_TK: Tensor, expert_ids_TK: Tensor) -> None:
    """Raise ValueError unless these are the choices of these tokens, with weights."""
    if weights_TK.dtype != torch.float32 or not weights_TK.is_contiguous():
        raise ValueError(
            f"The choices' weights are {weights_TK.dtype}; expected contiguous float32."
        )
    if weights_TK.shape != expert_ids_TK.shape or weights_TK.shape[:1] != x_TC.shape[:1]:
        raise ValueError(
            f"Choices {tuple(weights_TK.shape)} and {tuple(expert_ids_TK.shape)}; expected "
            f"[{x_TC.shape[0]}, K] twice."
        )


def num_together(bank: Tensor) -> int:
    """How many blocks share the weights of a tile's columns while these are in L2.

    bank: the weights of all experts, as they are stored.
    """
    return _BLOCKS_TOGETHER if bank[0].nbytes >= _LARGE_EXPERT_BYTES else 1


def check_biases(gate_up_EIC: Tensor, down_ECI: Tensor, biases: ExpertBiases | None) -> None:
    """Raise ValueError if the biases are not those of these weights."""
    if biases is None:
        return
    for bias, weight in ((biases.gate_up_EI, gate_up_EIC), (biases.down_EC, down_ECI)):
        if bias.dtype != weight.dtype or bias.shape != weight.shape[:2] or not bias.is_contiguous():
            raise ValueError(
                f"A bias is {bias.dtype} {tuple(bias.shape)}, strides {bias.stride()}; expected "
                f"contiguous {weight.dtype} {tuple(weight.shape[:2])}."
            )
