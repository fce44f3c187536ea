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
    """int32 or int64, each token's row in the tables; None: X is T and the rows are the tokens'."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QkNorm:
    """RMSNorm over each head of queries and keys."""

    q_weight_D: Tensor
    k_weight_D: Tensor
    eps: float
