"""How gate and up of a feed-forward become its hidden layer."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SiluGlu:
    """The product silu(gate) * up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeluTanhGlu:
    """gelu(gate) * up, where gelu is approximated by tanh."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClampedGlu:
    """The product gate * sigmoid(slope * gate) * (up + 1).

    Before, gate is cut at `limit` from above, and up at `limit` from above and below.
    """

    slope: float
    limit: float


GluForm = SiluGlu | GeluTanhGlu | ClampedGlu
