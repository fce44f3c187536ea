"""What rows look like on their way to the ranks of their experts."""

from enum import StrEnum


class Transport(StrEnum):
    """How the numbers of a row travel to experts. Their outputs come back as they are."""

    AUTO = "auto"
    """Unchanged, in the dtype of the model."""
    FP8 = "fp8"
    """Packed as float8, with a scale for each block of them: `kernels.fp8.form`."""
