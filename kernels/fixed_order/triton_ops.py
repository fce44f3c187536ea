"""`ModelOps` by Triton kernels whose sums are in one order, whatever else is in the step.

Legend: as in `ops`.
"""

import torch
from torch import Tensor

from raydix.kernels.attention.decode_tiles import DecodeTiles
from raydix.kernels.attention.form import AttentionForm
from raydix.kernels.attention.rows import AttentionRows, DecodeRows
from raydix.kernels.fixed_order.attention import fixed_decode, fixed_prefill
from raydix.kernels.fixed_order.linear import fixed_linear
from raydix.kernels.triton_ops import TritonOps
from raydix.kernels.weights.linear_weight import LinearWeight
from raydix.kernels.weights.weight import Weight


class FixedTritonOps(TritonOps):
    """`TritonOps` of which each gives a token the same bits among any others.

    Products and attention have kernels of their own. Norms, rotations, routing, activations and
    sampling go row by row as they are, and products of experts add up their inputs in one order in
    tiles of all shapes.
    """

    has_fixed_order = True

    def linear(self, x_TC: Tensor, weight: LinearWeight) -> Tensor:
        """Multiply by a plain weight and add its bias, as `ModelOps.linear` says."""
        assert isinstance(weight, Weight), "all is restored where the order is fixed"
        return fixed_linear(x_TC, weight.matrix_OC, weight.bias_O)

    def linear_summands(self, x_TC: Tensor, weight: LinearWeight) -> Tensor:
        """Return the whole product as its only summand; see `ModelOps.linear_summands`."""
        return self.linear(x_TC, weight)

    def paged_attention(
        self,
        q_TQD: Tensor,
        pool_PLH2SD: Tensor,
        layer: int,
        block_tables_RN: Tensor,
        rows: AttentionRows,
        form: AttentionForm,
    ) -> Tensor:
        """Attend to cached pages, as `ModelOps.paged_attention` says."""
        out_TQD = torch.empty(q_TQD.shape, dtype=q_TQD.dtype, device=q_TQD.device)
        for decode in rows.decode:
            fixed_decode(
                q_TQD,
                pool_PLH2SD,
                layer,
                block_tables_RN,
                _tiles(decode),
                max_context_tokens=decode.max_context_tokens,
                form=form,
                out_TQD=out_TQD,
            )
        if rows.tiles_X4 is not None:
            fixed_prefill(
                q_TQD,
                pool_PLH2SD,
                layer,
                block_tables_RN,
                rows.tiles_X4,
                tokens_per_tile=self.tile_tokens,
                form=form,
                out_TQD=out_TQD,
            )
        return out_TQD


def _tiles(rows: DecodeRows) -> DecodeTiles:
    return DecodeTiles(
        rows_B=rows.rows_B,
        tokens_B=rows.tokens_B,
        context_tokens_B=rows.context_tokens_B,
        num_tokens_B=rows.num_tokens_B,
        tokens_per_tile=rows.tokens_per_tile,
    )
