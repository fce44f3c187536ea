"""How the configs of quantised checkpoints name modules."""

from collections.abc import Mapping
from typing import Any

from raydix.errors import CheckpointError


def read_names(config: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """A list of names, which may be absent. Raises CheckpointError if it is something else."""
    names = config.get(key)
    if names is None:
        return ()
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise CheckpointError(
            f"quantization_config.{key} is {names!r}; expected a list of names. Fetch config.json "
            "again."
        )
    return tuple(names)


def is_part_of_name(name: str, module: str) -> bool:
    """Whether the words of a name, between points, follow each other in that of a module."""
    return f".{name}." in f".{module}."
