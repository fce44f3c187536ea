"""What the messages of a build are, so that two builds tell whether they understand each other."""

import hashlib
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, NewType, get_args, get_origin, get_type_hints

import msgspec
import numpy as np


def schema_digest(message_types: Iterable[type]) -> bytes:
    """16 bytes over these types and those within: fields in order, their types, values of enums.

    They do not depend on the version of Python or numpy.
    """
    described = "\n".join(_described(each) for each in message_types)
    return hashlib.sha256(described.encode()).digest()[:16]


def _described(hint: Any) -> str:
    if isinstance(hint, NewType):
        return _described(hint.__supertype__)
    outer = get_origin(hint)
    if outer is np.ndarray:
        return "column"
    if outer is not None:
        # What unions are called depends on the version of Python.
        name = outer.__name__ if outer in (tuple, dict) else "union"
        return f"{name}[{', '.join(map(_described, get_args(hint)))}]"
    if not isinstance(hint, type):
        return str(hint)
    if issubclass(hint, Enum):
        return f"{hint.__name__}{[member.value for member in hint]}"
    names = _field_names(hint)
    if names is not None:
        hints = get_type_hints(hint)
        inner = (f"{name}: {_described(hints[name])}" for name in names)
        return f"{hint.__name__}({', '.join(inner)})"
    return hint.__name__


def _field_names(cls: type) -> list[str] | None:
    """The fields of what is made of several values, in order; None for a single value."""
    if is_dataclass(cls):
        return [each.name for each in fields(cls)]
    if issubclass(cls, msgspec.Struct):
        return list(cls.__struct_fields__)
    # Those of a named tuple.
    names: tuple[str, ...] | None = getattr(cls, "_fields", None)
    return None if names is None else list(names)
