"""Columns of integers on their way to the device: a step's many in one copy.

Each begins at a multiple of 16 bytes: kernels are compiled for aligned and for other pointers
apart, and meet one kind.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Column = NDArray[np.int64]
_ALIGNED = 2
"""Numbers in 16 bytes."""


def packed_size(lengths: Sequence[int]) -> int:
    """Numbers that columns of these lengths take up, packed."""
    return sum(_aligned(length) for length in lengths)


def pack_columns(columns: Sequence[Column], lengths: Sequence[int] | None = None) -> Column:
    """Lay columns one behind another, each filled up with zeros to its length; None: its own."""
    lengths = [len(column) for column in columns] if lengths is None else lengths
    packed = np.zeros(packed_size(lengths), dtype=np.int64)
    start = 0
    for column, length in zip(columns, lengths, strict=True):
        packed[start : start + len(column)] = column
        start += _aligned(length)
    return packed


def split_columns(packed: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    """Views of the columns that `pack_columns` has put there."""
    columns = []
    start = 0
    for length in lengths:
        columns.append(packed[start : start + length])
        start += _aligned(length)
    return columns


def _aligned(length: int) -> int:
    return -(-length // _ALIGNED) * _ALIGNED
