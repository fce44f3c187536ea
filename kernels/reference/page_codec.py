"""Plain PyTorch twins of the codecs of pages.

Legend: X layers of pages, H KV heads, 2 keys and values, S tokens per page, D head dim, E = S x D,
B bytes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from raydix.kernels.pages.page_codec import (
    NAN_BITS,
    SCALE_LOW_BITS,
    SCALES_BYTES,
    SMALLEST_MAGNITUDE,
    Codec,
)

_PAYLOAD_DTYPES = {Codec.INT8: torch.int8, Codec.FP8: torch.float8_e4m3fn}


def encode_pages(kv_XH2SD: Tensor, codec: Codec) -> Tensor:
    """Keys and values of X layers of pages, encoded: uint8 [X, H * encoded_head_bytes].

    A payload is `x / scale`, rounded half to even; the scale of a head's keys or values is their
    largest magnitude over `codec.largest`, rounded up to 17 bits: products with a payload are then
    exact, so that what `decode_pages` returns is encoded to the same bytes again. Below
    SMALLEST_MAGNITUDE all of them become zero. If one is infinite or NaN, the scale is NaN: all of
    them are restored as NaN, none as a number that was never there.
    """
    x_XH2E = kv_XH2SD.flatten(-2).float()
    # As integers, magnitudes sort like their values, infinity and NaN behind all numbers.
    largest_bits_XH2 = (x_XH2E.view(torch.int32) & 0x7FFFFFFF).amax(-1)
    largest_XH2 = largest_bits_XH2.view(torch.float32)
    # By a tensor: CUDA would multiply by the reciprocal of a number.
    scales_XH2 = largest_XH2 / torch.full_like(largest_XH2, codec.largest)
    scale_bits_XH2 = scales_XH2.view(torch.int32) + SCALE_LOW_BITS & ~SCALE_LOW_BITS
    scale_bits_XH2 = scale_bits_XH2.masked_fill(largest_XH2 < SMALLEST_MAGNITUDE, 0)
    is_number_XH2 = largest_XH2 < torch.inf
    factors_XH2 = (1 / scale_bits_XH2.view(torch.float32)).masked_fill(
        (scale_bits_XH2 == 0) | ~is_number_XH2, 0.0
    )
    scaled_XH2E = x_XH2E.masked_fill(~is_number_XH2[..., None], 0.0) * factors_XH2[..., None]
    if codec is Codec.INT8:
        scaled_XH2E = scaled_XH2E.round()
    payload_XHB = scaled_XH2E.to(_PAYLOAD_DTYPES[codec]).view(torch.uint8).flatten(-2)
    scales_XHB = scale_bits_XH2.masked_fill(~is_number_XH2, NAN_BITS).view(torch.uint8)
    return torch.cat(
        (payload_XHB, functional.pad(scales_XHB, (0, SCALES_BYTES - scales_XHB.shape[-1]))), -1
    ).flatten(1)


def decode_pages(
    encoded_XB: Tensor, codec: Codec, shape_H2SD: Sequence[int], dtype: torch.dtype
) -> Tensor:
    """Restore what `encode_pages` returned, [X, H, 2, S, D].

    That is payload times scale in float32, rounded to `dtype`.
    """
    num_heads, _, page_size, head_dim = shape_H2SD
    encoded_XHB = encoded_XB.unflatten(1, (num_heads, -1))
    payload_XHB, scales_XHB = encoded_XHB.split((2 * page_size * head_dim, SCALES_BYTES), dim=-1)
    payload_XH2E = payload_XHB.view(_PAYLOAD_DTYPES[codec]).float().unflatten(-1, (2, -1))
    scales_XH2 = scales_XHB[..., :8].contiguous().view(torch.float32)
    return (payload_XH2E * scales_XH2[..., None]).to(dtype).unflatten(-1, (page_size, head_dim))
