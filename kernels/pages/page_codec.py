"""How the keys and values of a page are encoded in L2 and L3: names and sizes. Knows no torch.

A head's run in a page is `[k payload][v payload][k scale][v scale]`, 8 bytes of zeros behind it:
one byte per element and one float32 scale for keys and for values each.
"""

from enum import StrEnum
from typing import assert_never

ENCODED_ALIGNMENT_BYTES = 16
"""Payloads and heads' runs are multiples of this size, so that threads move whole words."""
SCALES_BYTES = 16
"""The size of the two scales and the padding that follow a head's payloads."""
SCALE_LOW_BITS = 0x7F
"""The lowest bits of a scale's 24 significant bits that stay zero."""
SMALLEST_MAGNITUDE = 2.0**-100
"""The magnitude below which all of a head's values must be for it to be encoded as zeros."""
NAN_BITS = 0x7FC00000
"""The bits of the scale of a head that holds an infinity or NaN."""


class Codec(StrEnum):
    """Format of pages in L2 and L3."""

    NONE = "none"
    INT8 = "int8"
    FP8 = "fp8"
    """The payload is e4m3, the form of FP8 without infinities."""

    @property
    def largest(self) -> float:
        """The number to which a head's largest magnitude is scaled. Raises ValueError for NONE."""
        match self:
            case Codec.INT8:
                return 127.0
            case Codec.FP8:
                return 448.0
            case Codec.NONE:
                raise ValueError("Without a codec nothing is scaled.")
            case _:
                assert_never(self)


def encoded_head_bytes(page_elements: int) -> int:
    """Bytes of one head's run in a page; its keys are `page_elements`, tokens times head dim."""
    return 2 * page_elements + SCALES_BYTES
