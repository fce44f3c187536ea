"""Where a checkpoint's JSON files tell how its weights are quantised: there are several places."""

from collections.abc import Mapping
from typing import Any

from raydix.errors import CheckpointError
from raydix.runtime.model.families.table import Family
from raydix.runtime.model.formats.definition import Quantisation
from raydix.runtime.model.formats.table import WEIGHT_FORMATS

_METHOD = "quant_method"


def find_quantisation(raw: Mapping[str, Any], family: Family) -> Quantisation:
    """How the weights beside this config.json are stored.

    Raises CheckpointError, naming what there is, for a method that is not known.
    """
    config = _find_config(raw, family.value.text_section)
    # An object without a method tells of a quantisation, too, though not of which.
    told = None if config is None else str(config.get(_METHOD))

    model_type = family.value.model_type
    known = [each for each in WEIGHT_FORMATS if each.may_store(model_type)]
    for each in known:
        if each.quant_method == told:
            return Quantisation(format=each, layouts=each.read(config or {}), config=config)
    supported = ", ".join(each.quant_method or "unquantised weights" for each in known)
    raise CheckpointError(
        f"The checkpoint is quantised ({told}); supported for {model_type}: {supported}."
    )


def _find_config(raw: Mapping[str, Any], section: str | None) -> Mapping[str, Any] | None:
    """The object that tells it, with its method; None if there is none."""
    places = [raw] if section is None else [raw, raw.get(section)]
    for place in places:
        if not isinstance(place, Mapping):
            continue
        config = place.get("quantization_config")
        if config is not None:
            return config if isinstance(config, Mapping) else {_METHOD: config}
    return None
