"""How one layer's attention weighs what it sees.

Legend: Q query heads.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionForm:
    """How one layer weighs what it sees. The softmax is in float32."""

    scale: float
    """The factor that multiplies the product q . k to give a score."""
    window: int | None = None
    """A query at position p sees keys p - window + 1 .. p; None: all keys up to p."""
    soft_cap: float | None = None
    """The bound of scaled scores, which become soft_cap * tanh(score / soft_cap); None: none."""
    sinks_Q: Tensor | None = None
    """One logit per query head that joins the softmax's denominator without a value; None: none."""
