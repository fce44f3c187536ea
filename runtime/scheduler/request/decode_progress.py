"""How far requests are that decode together, as others may look at it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class DecodeProgress:
    """A view of columns that `DecodeBatch` alone changes: one entry per slot."""

    num_sampled: NDArray[np.int32]
    """The number of output tokens that were planned."""
    num_known: NDArray[np.int32]
    """The number of output tokens that are known."""
