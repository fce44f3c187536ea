"""Where a checkpoint's JSON files tell how its weights are quantised: there are several places."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raydix.errors import CheckpointError
from raydix.runtime.model.checkpoint.json_file import read_json
from raydix.runtime.model.families.table import Family
from raydix.runtime.model.formats.definition import Quantisation
from raydix.runtime.model.formats.table import WEIGHT_FORMATS

_METHOD = "quant_method"
_OLD_NAME = "compression_config"
"""What config.json called the object of compressed-tensors at first."""
_MODELOPT_FILE = "hf_quant_config.json"


def find_quantisation(folder: Path, raw: Mapping[str, Any], family: Family) -> Quantisation:
    """How the weights in `folder` are stored, whose config.json is `raw`.

    Raises CheckpointError, naming what there is, for a method that is not known.
    """
    config = _find_config(folder, raw, family.value.text_section)
    told = None if config is None else str(config.get(_METHOD))

    model_type = family.value.model_type
    known = [each for each in WEIGHT_FORMATS if each.may_store(model_type)]
    for each in known:
        if each.quant_method == told:
            return Quantisation(format=each, layouts=each.read(config or {}), config=config)
    supported = ", ".join(each.quant_method or "unquantised weights" for each in known)
    raise CheckpointError(
        f"The checkpoint is quantised ({told}); supported for {model_type}: {supported}. "
        "Fetch a checkpoint in one of these."
    )


def _find_config(
    folder: Path, raw: Mapping[str, Any], section: str | None
) -> Mapping[str, Any] | None:
    """The object that tells it, with its method; None if there is none."""
    text = None if section is None else raw.get(section)
    for place in (raw, text if isinstance(text, Mapping) else {}):
        config = place.get("quantization_config")
        if config is not None:
            return _with_method(config)
        old = place.get(_OLD_NAME)
        if isinstance(old, Mapping):
            return {**old, _METHOD: "compressed-tensors"}

    path = folder / _MODELOPT_FILE
    return {**read_json(path), _METHOD: "modelopt"} if path.exists() else None


def _with_method(config: object) -> Mapping[str, Any]:
    if not isinstance(config, Mapping):
        raise CheckpointError(
            f"quantization_config of config.json is {config!r}; expected an object, of which "
            f"{_METHOD} names the format. Fetch config.json again."
        )
    if _METHOD not in config and ("quant_algo" in config or "quantization" in config):
        # Some files of Model Optimizer leave it out.
        return {**config, _METHOD: "modelopt"}
    if config.get(_METHOD) is None:
        raise CheckpointError(
            f"quantization_config of config.json has no {_METHOD}; expected the name of a format. "
            "Fetch config.json again."
        )
    return config
