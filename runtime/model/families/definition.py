"""What a file of this folder says about its family of models."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from raydix.runtime.model.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyDefinition:
    """How checkpoints of one architecture are recognised and read."""

    model_type: str
    """Of config.json."""
    architecture: str
    """Of config.json, in case it names one."""
    read_spec: Callable[[Any], ModelSpec]
    """From the config as transformers reads it. Raises CheckpointError, naming the limit, for what
    the decoder does not support.
    """
    weight_names: Mapping[str, str]
    """See `weight_names`."""
