"""Plain PyTorch twin of the norm.

Legend: T tokens of the step, C hidden.
"""

import torch
from torch import Tensor


def rms_norm(
    x_TC: Tensor, weight_C: Tensor, eps: float, *, residual_TC: Tensor | None = None
) -> Tensor:
    """Scale the last dimension to unit root mean square, in float32, then by `weight_C`.

    The first product is rounded to the dtype of `weight_C`: a float32 weight leaves one rounding.
    With `residual_TC`: it becomes `residual_TC + x_TC` in place, and that sum is normalised.
    """
    if residual_TC is not None:
        x_TC = residual_TC.add_(x_TC)
    x32_TC = x_TC.float()
    variance_T1 = x32_TC.pow(2).mean(-1, keepdim=True)
    normed_TC = (x32_TC * torch.rsqrt(variance_T1 + eps)).to(weight_C.dtype)
    return (weight_C * normed_TC).to(x_TC.dtype)
