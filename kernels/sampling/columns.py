"""How each row of a step is sampled, as columns on the device: for kernels and twins.

Legend: R rows, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

COLUMN_DTYPES: dict[str, np.dtype[Any]] = {
    "noise_keys_R": np.dtype(np.int64),
    "temperatures_R": np.dtype(np.float64),
    "top_ks_R": np.dtype(np.int64),
    "top_ps_R": np.dtype(np.float64),
    "min_ps_R": np.dtype(np.float64),
}
"""The dtype of each field of `SamplingColumns` on the host."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SamplingColumns:
    """One entry per row; all contiguous. A row whose temperature is 0 is greedy."""

    noise_keys_R: Tensor
    """A hash of (seed, output position) per row, from which, with its id, a token's noise comes."""
    temperatures_R: Tensor
    top_ks_R: Tensor
    """The number of likeliest tokens that each row keeps; 0 keeps all tokens."""
    top_ps_R: Tensor
    """The probability that each row's kept tokens must sum to (top-p); 1 keeps all tokens."""
    min_ps_R: Tensor
    """The least probability kept, relative to the likeliest token (min-p); 0 keeps all."""

    @property
    def cuts_R(self) -> Tensor:
        """Whether each row samples from a part of the vocabulary, as bools."""
        is_part_R = (self.top_ks_R > 0) | (self.top_ps_R < 1) | (self.min_ps_R > 0)
        return is_part_R & (self.temperatures_R > 0)

    def at(self, rows_X: Tensor) -> "SamplingColumns":
        """The columns of some of the rows."""
        return SamplingColumns(
            noise_keys_R=self.noise_keys_R[rows_X],
            temperatures_R=self.temperatures_R[rows_X],
            top_ks_R=self.top_ks_R[rows_X],
            top_ps_R=self.top_ps_R[rows_X],
            min_ps_R=self.min_ps_R[rows_X],
        )


def as_sampling_columns(columns: Mapping[str, Tensor]) -> SamplingColumns:
    """The columns of a step that have the names of `SamplingColumns`' fields."""
    return SamplingColumns(
        noise_keys_R=columns["noise_keys_R"],
        temperatures_R=columns["temperatures_R"],
        top_ks_R=columns["top_ks_R"],
        top_ps_R=columns["top_ps_R"],
        min_ps_R=columns["min_ps_R"],
    )


def check_inputs(logits_RV: Tensor, columns: SamplingColumns) -> None:
    """Raise ValueError unless logits are bf16 or float32, contiguous in V, and columns fit."""
    if logits_RV.dtype not in (torch.bfloat16, torch.float32):
        raise ValueError(f"Logits are {logits_RV.dtype}; expected bfloat16 or float32.")
    if logits_RV.dim() != 2 or logits_RV.stride(1) != 1 or logits_RV.shape[1] == 0:
        shape = f"{tuple(logits_RV.shape)}, {logits_RV.stride()}"
        raise ValueError(f"Logits are {shape}; expected [R, V], contiguous in V.")

    expected = {
        "noise_keys_R": (columns.noise_keys_R, torch.int64),
        "temperatures_R": (columns.temperatures_R, torch.float64),
        "top_ks_R": (columns.top_ks_R, torch.int64),
        "top_ps_R": (columns.top_ps_R, torch.float64),
        "min_ps_R": (columns.min_ps_R, torch.float64),
    }
    num_rows = logits_RV.shape[0]
    for name, (column, dtype) in expected.items():
        if column.dtype != dtype or column.shape != (num_rows,) or not column.is_contiguous():
            actual = f"{column.dtype} {tuple(column.shape)}"
            raise ValueError(f"{name} is {actual}; expected contiguous {dtype} [{num_rows}].")
