"""How the configs of quantised checkpoints name modules, and tell sizes of them."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from raydix.errors import CheckpointError

_PATTERN = "re:"
"""Names of modules that begin so are patterns."""
_CLASS = "Linear"
"""The class of transformers' modules that are quantised."""


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


def matches_target(target: str, module: str) -> bool:
    """Whether compressed-tensors means a module: by its name, a pattern, or the class of all."""
    if target.startswith(_PATTERN):
        return re.match(target.removeprefix(_PATTERN), module) is not None
    return target in (module, _CLASS)


def is_name(target: str) -> bool:
    """Whether a target is a module, and no pattern or class."""
    return target != _CLASS and not target.startswith(_PATTERN)


def precedence(target: str) -> int:
    """The lower, the sooner a target decides: names do, then patterns, then the class."""
    if is_name(target):
        return 0
    return 2 if target == _CLASS else 1


def require_targets(targets: Sequence[str], key: str) -> None:
    """Raise CheckpointError if one is no pattern that Python's `re` understands."""
    for each in targets:
        if not each.startswith(_PATTERN):
            continue
        try:
            re.compile(each.removeprefix(_PATTERN))
        except re.error as error:
            raise CheckpointError(
                f"quantization_config.{key} has {each!r}, which is no pattern: {error}. Fetch "
                "config.json again."
            ) from error


def is_count(value: object) -> TypeGuard[int]:
    """Whether a value of a config is a whole number from 1; true, which equals 1, is none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def read_group_size(config: Mapping[str, Any], key: str) -> int | None:
    """The inputs that share a scale; None for all, which configs write as -1.

    Raises CheckpointError if it is no such number.
    """
    size = config.get(key)
    if size == -1:
        return None
    if not is_count(size):
        raise CheckpointError(
            f"quantization_config.{key} is {size!r}; expected a whole number from 1, or -1 for all "
            "inputs. Fetch config.json again."
        )
    return size
