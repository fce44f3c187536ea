"""Named columns of numbers on their way to the device: a step's many in one copy.

A column arrives under its name, with its type and shape. Each begins at a multiple of 16 bytes:
kernels are compiled for aligned and for other pointers apart, and meet one kind.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Column = NDArray[np.int64]
AnyColumn = NDArray[np.int64] | NDArray[np.float64] | NDArray[np.int32]
Columns = Mapping[str, AnyColumn]
"""The columns by name; what the names mean is the caller's."""
INT64, FLOAT64, INT32 = np.dtype(np.int64), np.dtype(np.float64), np.dtype(np.int32)
_ON_DEVICE = {INT64: torch.int64, FLOAT64: torch.float64, INT32: torch.int32}
_ALIGNED_BYTES = 16
_NUMBER_BYTES = 8
"""The bytes of one of the packed numbers."""


@dataclass(frozen=True, slots=True)
class ColumnForm:
    """Type and shape of a column."""

    dtype: np.dtype[np.generic]
    """`INT64`, `FLOAT64` or `INT32`."""
    shape: tuple[int, ...]

    def holds(self, column: AnyColumn) -> bool:
        """Is the column of this type and shape, or shorter in its first dimension?"""
        if column.dtype != self.dtype or len(column) > self.shape[0]:
            return False
        return column.ndim == 1 == len(self.shape) or column.shape[1:] == self.shape[1:]


class Layout:
    """Where columns lie when they are packed: one behind another, in the order of their names."""

    def __init__(self, forms: Mapping[str, ColumnForm]) -> None:
        self._forms = forms
        self._entries: dict[str, slice] = {}
        """Where the entries of each column are, counted in entries of its type."""
        num_bytes = 0
        for name, form in forms.items():
            entry_bytes = form.dtype.itemsize
            num_entries = math.prod(form.shape)
            first = num_bytes // entry_bytes
            self._entries[name] = slice(first, first + num_entries)
            num_bytes += -(-num_entries * entry_bytes // _ALIGNED_BYTES) * _ALIGNED_BYTES
        # Memory of no bytes could not be seen as numbers of another type.
        self.size = max(num_bytes, _ALIGNED_BYTES) // _NUMBER_BYTES
        """Packed numbers, with those between one column and the next."""

    @classmethod
    def of(cls, columns: Columns) -> "Layout":
        """The one in which columns have no more room than they need."""
        return cls({name: ColumnForm(each.dtype, each.shape) for name, each in columns.items()})

    def pack(self, columns: Columns) -> Column:
        """Lay columns one behind another, each filled up with zeros to its length.

        Raises ValueError if other columns are expected, or one does not fit its form.
        """
        if columns.keys() != self._forms.keys():
            raise ValueError(f"Columns are {[*columns]}; expected {[*self._forms]}.")
        packed = np.zeros(self.size, dtype=np.int64)
        seen_as = {dtype: packed.view(dtype) for dtype in _ON_DEVICE}

        for name, form in self._forms.items():
            column = columns[name]
            if not form.holds(column):
                actual = f"{column.dtype} {column.shape}"
                raise ValueError(f"{name} is {actual}; expected at most {form.dtype} {form.shape}.")
            first = self._entries[name].start
            flat = column if column.ndim == 1 else column.reshape(-1)
            seen_as[form.dtype][first : first + flat.size] = flat
        return packed

    def views(self, packed: Column) -> dict[str, AnyColumn]:
        """The columns among numbers that `pack` has laid out, to be written to."""
        seen_as = {dtype: packed.view(dtype) for dtype in _ON_DEVICE}
        return {
            name: seen_as[form.dtype][self._entries[name]]
            for name, form in self._forms.items()
            if len(form.shape) == 1
        }

    def split(self, packed: Tensor) -> dict[str, Tensor]:
        """Views of the columns that `pack` has put there."""
        seen_as = {dtype: packed.view(on_device) for dtype, on_device in _ON_DEVICE.items()}
        columns = {}
        for name, form in self._forms.items():
            flat = seen_as[form.dtype][self._entries[name]]
            columns[name] = flat if len(form.shape) == 1 else flat.view(form.shape)
        return columns
