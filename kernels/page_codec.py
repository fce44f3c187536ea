"""How the keys and values of a page are encoded in L2 and L3: names and sizes. Knows no torch.

A head's run in a page is `[k payload][v payload][k scale][v scale]`, 8 bytes of zeros behind it:
one byte per element and one float32 scale for keys and for values each.
"""

from enum import StrEnum
from typing import assert_never

ENCODED_ALIGNMENT_BYTES = 16
"""Of every payload and every head's run, so that threads of a GPU move whole words."""
SCALES_BYTES = 16
"""Behind a head's payloads: two scales and the padding."""
SCALE_LOW_BITS = 0x7F
"""Of a scale's 24 significant bits these stay zero."""
SMALLEST_MAGNITUDE = 2.0**-100
NAN_BITS = 0x7FC00000
"""Of the scale of what holds an infinity or NaN."""


class Codec(StrEnum):
    """Format of pages in L2 and L3."""

    NONE = "none"
    INT8 = "int8"
    FP8 = "fp8"
    """e4m3, without infinities."""

    @property
    def largest(self) -> float:
        """What the largest magnitude of a payload is scaled to. Raises ValueError for NONE, which
        has none.
        """
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
    """Bytes of one head's run in a page; `page_elements`: of its keys, which is tokens times head
    dim.
    """
    return 2 * page_elements + SCALES_BYTES
