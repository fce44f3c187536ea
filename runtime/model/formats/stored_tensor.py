"""A tensor of a safetensors file as its header tells of it."""

from dataclasses import dataclass
from pathlib import Path

FETCH_BOTH = "Fetch config.json and weights of the same model."
"""What to do about weights that are not those of the config.json beside them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """Where the bytes of a tensor are."""

    name: str
    path: Path
    offset: int
    """The place in the file at which the tensor's bytes begin."""
    num_bytes: int
    dtype: str
    """The format's word."""
    shape: tuple[int, ...]
