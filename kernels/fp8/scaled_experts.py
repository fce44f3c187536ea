"""Experts whose weights are float8 with a scale for each block: as `moe.grouped_gemm`, otherwise.

Few rows are rounded by each program for itself, and the hidden layer likewise. Many rows are
rounded once, by a kernel of their own; a tile of gate and up has all 128 columns of the hidden
layer that share a scale, so that it rounds those itself. Hopper has kernels of its own for them.

Legend: T tokens, K experts per token, X = T x K pairs, C hidden, I intermediate, E experts, B
blocks of rows, D blocks of inputs.
"""

import torch
import triton
from torch import Tensor

from raydix.kernels.dense.glu_form import GluForm
from raydix.kernels.fp8 import many_hopper
from raydix.kernels.fp8.expert_hidden import compute_hidden
from raydix.kernels.fp8.expert_inputs import Rows, check_experts
from raydix.kernels.fp8.expert_outputs import compute_outputs
from raydix.kernels.fp8.form import BLOCK
from raydix.kernels.fp8.hopper_tiles import TILE_ROWS
from raydix.kernels.fp8.rounding import round_inputs
from raydix.kernels.fp8.scaled_tiles import ExpertTiles, expert_tiles
from raydix.kernels.moe.choice_sum import sum_over_choices
from raydix.kernels.moe.permute import permute_by_expert
from raydix.kernels.weights.scaled_weight import ScaledWeight


def scaled_experts(
    x_TC: Tensor,
    gate_up: ScaledWeight,
    down: ScaledWeight,
    weights_TK: Tensor,
    expert_ids_TK: Tensor,
    *,
    form: GluForm,
    tiles: ExpertTiles | None = None,
) -> Tensor:
    """Weighted sum of the chosen experts' outputs, [T, C].

    As `reference.scaled_linear.scaled_experts` computes it. x: bf16 or float32. gate_up has gate
    rows, then up rows, in each seat. weights_TK: float32; expert_ids_TK: int32 or int64; ids
    outside of 0..E-1 add nothing. `tiles`: others than those for so many rows. Raises ValueError if
    a shape, dtype or stride differs.
    """
    check_experts(x_TC, gate_up, down, weights_TK, expert_ids_TK)
    if x_TC.shape[0] == 0:
        return torch.empty_like(x_TC)

    num_experts, _, intermediate = down.numbers.matrix_OC.shape
    num_pairs = expert_ids_TK.numel()
    choices_TKC = x_TC.new_empty((*expert_ids_TK.shape, x_TC.shape[1]))
    if tiles is None and many_hopper.fits(x_TC, gate_up, down, num_pairs):
        blocks = permute_by_expert(expert_ids_TK, num_experts, TILE_ROWS)
        many_hopper.compute_choices(x_TC, gate_up, down, weights_TK, blocks, choices_TKC, form=form)
        return sum_over_choices(choices_TKC, expert_ids_TK, num_experts)
    tiles = tiles or expert_tiles(num_pairs, num_experts)
    blocks = permute_by_expert(expert_ids_TK, num_experts, tiles.gate_up.rows)
    if tiles.is_rounded_first:
        rows = Rows(*round_inputs(x_TC))
        hidden = Rows(
            x_TC.new_empty((num_pairs, intermediate), dtype=torch.float8_e4m3fn),
            x_TC.new_empty((triton.cdiv(intermediate, BLOCK), num_pairs), dtype=torch.float32),
        )
    else:
        rows = Rows(x_TC, None)
        hidden = Rows(x_TC.new_empty((num_pairs, intermediate)), None)
    compute_hidden(
        rows,
        gate_up,
        blocks,
        tiles.gate_up,
        hidden,
        choices=expert_ids_TK.shape[1],
        form=form,
        dtype=x_TC.dtype,
    )
    compute_outputs(hidden, down, weights_TK, blocks, tiles.down, choices_TKC)
    return sum_over_choices(choices_TKC, expert_ids_TK, num_experts)
