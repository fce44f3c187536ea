"""MXFP4: blocks of 32 four-bit floats that share a power of two (OCP Microscaling Formats 1.0).

Legend: E experts, O outputs, N blocks of an output, B bytes of a block: two numbers each.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from raydix.errors import CheckpointError

_BLOCK_BYTES = 16
_MANTISSA_BITS = 23
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The magnitudes of the codes 0 to 7; the codes 8 to 15 are the same with a minus."""


def unpack_experts(name: str, blocks_EONB: Tensor, scales_EON: Tensor) -> Iterator[Tensor]:
    """Each expert's matrix in turn, float32 [outputs, inputs].

    Raises CheckpointError, with the `name` of both, if they do not fit together.
    """
    is_packed = blocks_EONB.dtype == scales_EON.dtype == torch.uint8 and blocks_EONB.dim() == 4
    if not is_packed or blocks_EONB.shape != (*scales_EON.shape, _BLOCK_BYTES):
        raise CheckpointError(
            f"{name}_blocks is {blocks_EONB.dtype} {list(blocks_EONB.shape)} and {name}_scales "
            f"{scales_EON.dtype} {list(scales_EON.shape)}; expected uint8 and {_BLOCK_BYTES} bytes "
            f"for each scale. Fetch the checkpoint again."
        )

    numbers = torch.tensor(
        [*_MAGNITUDES, *(-each for each in _MAGNITUDES)], device=blocks_EONB.device
    )
    for blocks_ONB, scales_ON in zip(blocks_EONB, scales_EON, strict=True):
        codes = torch.stack((blocks_ONB & 0xF, blocks_ONB >> 4), dim=-1).flatten(-2)
        restored = numbers[codes.int()] * _powers_of_two(scales_ON)[..., None]
        yield restored.flatten(1)


def _powers_of_two(scales: Tensor) -> Tensor:
    """Exactly, on every device: scales are biased exponents, as float32 itself has them."""
    bits = scales.int() << _MANTISSA_BITS
    # The lowest power has no exponent bits left: it is half of the smallest normal number.
    return torch.where(scales == 0, 1 << (_MANTISSA_BITS - 1), bits).view(torch.float32)
