"""Rows of tables by token, of which each rank has a share of the vocabulary.

Legend: T tokens of the step, V vocabulary, C columns.
"""

import torch
from torch import Tensor, nn

from raydix.kernels.weights.rank_share import RankShare
from raydix.kernels.weights.weight import empty_weight
from raydix.kernels.weights.weight_part import WeightPart
from raydix.runtime.model.collectives.protocol import Collectives


class Embedding(nn.Module):
    """A row for each token, which all ranks find together. `scale`: what multiplies it, if any."""

    def __init__(
        self,
        vocab_size: int,
        size: int,
        scale: float | None,
        collectives: Collectives,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self._vocab_size = vocab_size
        self._collectives = collectives
        self._share = RankShare(collectives.rank, collectives.size)
        # Checkpoints round it, too.
        self._scale = None if scale is None else torch.tensor(scale, dtype=dtype).item()
        num_rows = self._share.length(vocab_size)
        self.table = empty_weight(num_rows, size, bias=False, device=device, dtype=dtype)

    def forward(self, token_ids_T: Tensor) -> Tensor:
        """The tokens' rows, [T, C]. All ranks call it with the same tokens."""
        rows_TC = self._collectives.sum(self._own_rows(token_ids_T))
        return rows_TC if self._scale is None else rows_TC.mul_(self._scale)

    def weights(self) -> dict[str, WeightPart]:
        """The part of the tensor that a checkpoint has."""
        return self.table.row_parts(self._share, self._vocab_size)

    def _own_rows(self, token_ids_T: Tensor) -> Tensor:
        """The tokens' rows; zeros where another rank has them."""
        matrix_VC = self.table.matrix_OC
        if self._share.size == 1:
            return matrix_VC[token_ids_T]

        num_rows = matrix_VC.shape[0]
        own_T = token_ids_T - self._share.rank * num_rows
        is_elsewhere_T = (own_T < 0) | (own_T >= num_rows)
        part_TC = matrix_VC[own_T.clamp(0, num_rows - 1)]
        return part_TC.masked_fill_(is_elsewhere_T[:, None], 0)
