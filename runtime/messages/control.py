"""What travels between a client and the Supervisor: one call per link, and its answer.

Arguments and results are plain values: numbers, text, bytes, None, lists and dicts of these.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np


class ControlErrorKind(StrEnum):
    """Why a call failed; each maps to the error type of that name in `raydix.errors`."""

    BAD_REQUEST = "BadRequest"
    CONFIG = "ConfigError"
    CHECKPOINT = "CheckpointError"
    ACCOUNTING = "AccountingError"
    CALLED_OFF = "CalledOff"
    ENGINE_ASLEEP = "EngineAsleep"
    ENGINE_DEAD = "EngineDead"
    ENGINE_STOPPED = "EngineStopped"
    OTHER = "RaydixError"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlCall:
    """Call a method of the Supervisor. Never stale: it is a link's first message, and its only."""

    method: str
    arguments: bytes
    """A list, as `pack_values` makes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlResult:
    """What the call returned. Stale once the caller has closed the link."""

    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlFailure:
    """The call raised. Stale once the caller has closed the link."""

    kind: ControlErrorKind
    message: str


def pack_values(value: Any) -> bytes:
    """Plain values to bytes; tuples and sets become lists. Raises TypeError for others."""
    return msgspec.msgpack.encode(value, enc_hook=_plain)


def unpack_values(data: bytes) -> Any:
    """What `pack_values` was given. Raises ValueError for bytes that it did not make."""
    try:
        return msgspec.msgpack.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"{len(data)} bytes are no plain values: {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is no plain value")
