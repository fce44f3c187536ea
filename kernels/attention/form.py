"""How one layer's attention weighs what it sees.

Legend: Q query heads, H KV heads.
"""

from dataclasses import dataclass

from torch import Tensor

from raydix.kernels.kv_cache.fp8 import FP8


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
    kv_scales_2H: Tensor | None = None
    """What keys and values in FP8 are multiplied by, float32; None: by one. Others are as they are.
    """

    def scales_of(self, pool: Tensor) -> Tensor | None:
        """The scales of what is in a pool; None: it is as it is."""
        return self.kv_scales_2H if pool.dtype == FP8 else None
