"""What changes the states of a step's rows.

Legend: T tokens of the step, X channels, V value heads, K taps.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeltaInputs:
    """What a layer makes of its tokens for `ModelOps.gated_delta`."""

    channels_TX: Tensor
    """Queries, keys and values, before the convolution."""
    taps_XK: Tensor
    """The convolution of each channel, the current token's tap last."""
    decays_TV: Tensor
    """The logarithms of what is left of states before each token, at most 0, float32."""
    betas_TV: Tensor
    """The part of each token's value that its state learns, float32."""
