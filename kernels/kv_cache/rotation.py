"""What queries and keys are normed and rotated with, before keys are cached.

Legend: T tokens of the step, X rows of the tables, D head dim, R dims of a head that are rotated.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RopeTables:
    """Cos and sin [X, R] in the model's dtype; the second half of R repeats the first.

    They rotate the first R dims of each head, and leave the others.
    """

    cos_XR: Tensor
    sin_XR: Tensor
    positions_T: Tensor | None
    """The tables' row for each token, int32 or int64; None: X is T, and row i is token i's."""

    query_scales_X: Tensor | None = None
    """What queries are multiplied by once they are rotated, in the model's dtype; None: nothing."""

    def of_tokens(self) -> tuple[Tensor, Tensor]:
        """Cos and sin of each token, [T, R]."""
        if self.positions_T is None:
            return self.cos_XR, self.sin_XR
        return self.cos_XR[self.positions_T], self.sin_XR[self.positions_T]

    def scaled(self, q_TQD: Tensor) -> Tensor:
        """Rotated queries, multiplied by what their positions ask for."""
        scales_X = self.query_scales_X
        if scales_X is None:
            return q_TQD
        scales_T = scales_X if self.positions_T is None else scales_X[self.positions_T]
        return q_TQD * scales_T[:, None, None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QkNorm:
    """RMSNorm over each head of queries and keys."""

    q_weight_D: Tensor
    k_weight_D: Tensor
    eps: float
