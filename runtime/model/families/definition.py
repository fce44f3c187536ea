"""What a file of this folder says about its family of models."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from raydix.runtime.model.families.fused_rows import FusedRows
from raydix.runtime.model.formats.restoring import Tensors
from raydix.runtime.model.spec.spec import ModelSpec


def unchanged(tensors: Tensors, spec: ModelSpec) -> Tensors:
    """The tensors as they are."""
    return tensors


def nothing_fused(spec: ModelSpec) -> Mapping[str, FusedRows]:
    """Each weight of a model is a tensor of its own."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyDefinition:
    """How checkpoints of one architecture are recognised and read."""

    model_type: str
    """The `model_type` of config.json."""
    architecture: str
    """The one entry of config.json's `architectures`, if there is any."""
    other_architectures: tuple[str, ...] = ()
    """What else the entry may be: the same by another name."""
    read_spec: Callable[[Any], ModelSpec]
    """Reads the config of the language model as transformers presents it.

    Raises CheckpointError, naming the limit, for what the decoder does not support.
    """
    weight_names: Mapping[str, str]
    """What checkpoints call the decoder's weights: a table as in `weight_names`."""
    has_prediction_layers: bool = False
    """May checkpoints hold layers past the last, which guess tokens ahead? They are not loaded."""
    config_type: str | None = None
    """The model_type by whose class transformers reads the config; None: its own."""
    text_section: str | None = None
    """The section of config.json that describes the language model; None: the whole file."""
    restore: Callable[[Tensors, ModelSpec], Tensors] = unchanged
    """Turns the floats of a checkpoint into the tensors that `weight_names` names."""
    fused: Callable[[ModelSpec], Mapping[str, FusedRows]] = nothing_fused
    """What is left to take apart then, by the names of the tensors."""
