"""Keys and values as float8 (e4m3): what is stored is the value over its head's scale.

Whatever reads pages reads them as they are, and multiplies by the scales what it has made of them:
that of keys multiplies scores, that of values sums of values. The scales are fixed, so what is
stored of a token depends on that token alone, whatever else is in its page.
"""

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
"""The dtype of such pages; it has no infinities."""
LARGEST = 448.0
"""The largest number that it has. What is larger is stored as this, and NaN as NaN."""


def check_kv_scales(kv_scales_2H: Tensor | None, num_heads: int) -> None:
    """Raise ValueError unless scales are None or one for the keys and values of each KV head."""
    if kv_scales_2H is None:
        return
    is_fit = kv_scales_2H.dtype == torch.float32 and kv_scales_2H.is_contiguous()
    if kv_scales_2H.shape != (2, num_heads) or not is_fit:
        raise ValueError(
            f"Scales of keys and values are {kv_scales_2H.dtype} {tuple(kv_scales_2H.shape)}; "
            f"expected contiguous float32 [2, {num_heads}]."
        )
