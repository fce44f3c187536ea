"""What queries and keys are normed and rotated with, before keys are cached.

Legend: T tokens of the step, X rows of the tables, D head dim.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RopeTables:
    """Cos and sin [X, D] in the model's dtype; the second half of D repeats the first."""

    cos_XD: Tensor
    sin_XD: Tensor
    positions_T: Tensor | None
    """The tables' row for each token, int32 or int64; None: X is T, and row i is token i's."""

    def of_tokens(self) -> tuple[Tensor, Tensor]:
        """Cos and sin of each token, [T, D]."""
        if self.positions_T is None:
            return self.cos_XD, self.sin_XD
        return self.cos_XD[self.positions_T], self.sin_XD[self.positions_T]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QkNorm:
    """RMSNorm over each head of queries and keys."""

    q_weight_D: Tensor
    k_weight_D: Tensor
    eps: float
