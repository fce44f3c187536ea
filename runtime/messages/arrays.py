"""Read-only numpy columns that messages carry instead of lists of objects."""

from collections.abc import Iterable
from typing import Any

import numpy as np

# Spelt out for the codec, which asks for the origin of this type: from numpy 2.5 on NDArray is an
# alias without one.
Int32Array = np.ndarray[Any, np.dtype[np.int32]]
Int64Array = np.ndarray[Any, np.dtype[np.int64]]
"""Used within one process: only int32 columns travel."""


def int32_array(values: Iterable[int] | np.ndarray[Any, Any]) -> Int32Array:
    """Copy `values` into a read-only int32 column. Raises OverflowError if one does not fit."""
    if isinstance(values, np.ndarray):
        array = values.astype(np.int32)
        # numpy silently wraps around what does not fit.
        if values.dtype != np.int32 and not np.array_equal(array, values):
            raise OverflowError(
                f"{values.dtype} column with values outside int32: {values.min()} to {values.max()}"
            )
    else:
        array = np.array(list(values), dtype=np.int32)
    array.flags.writeable = False
    return array


def frozen(array: Int32Array) -> Int32Array:
    """An int32 array that nobody else has, read-only from now on: `int32_array` without a copy."""
    array.flags.writeable = False
    return array


_EMPTY = int32_array(())


def empty() -> Int32Array:
    """The column without entries; a default factory, as arrays cannot be dataclass defaults."""
    return _EMPTY
