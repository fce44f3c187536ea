"""Messages to bytes and back: msgpack arrays of a tag and the fields, as defined.

int32 columns travel as an extension type of raw little-endian bytes and come back as read-only
views; enums travel by value, nested dataclasses as arrays of their fields. Both ends must have the
same `SCHEMA`, because a tag is a position in `Message`, and a field one in its message.
"""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from operator import attrgetter
from types import UnionType
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

import msgpack
import numpy as np

from raydix.errors import RaydixError
from raydix.ids import AskingId
from raydix.runtime.messages.arrays import Int32Array, empty
from raydix.runtime.messages.client import (
    AbortRequest,
    PrefetchPrompt,
    StopRequest,
    SubmitRequest,
    TokenFrame,
)
from raydix.runtime.messages.control import ControlCall, ControlFailure, ControlResult
from raydix.runtime.messages.hello import Hello
from raydix.runtime.messages.host import (
    AskExists,
    CancelBatch,
    DeleteObjects,
    FromHost,
    ObjectsDone,
    ReadObjects,
    ToHost,
    WriteObjects,
)
from raydix.runtime.messages.plan import (
    DeviceSampling,
    StepPlan,
    StepResult,
    TransfersDone,
)
from raydix.runtime.messages.schema import schema_digest

Message = (
    Hello
    | SubmitRequest
    | PrefetchPrompt
    | AbortRequest
    | StopRequest
    | TokenFrame
    | StepPlan
    | StepResult
    | TransfersDone
    | ToHost
    | FromHost
    | AskExists
    | ReadObjects
    | WriteObjects
    | DeleteObjects
    | CancelBatch
    | ObjectsDone
    | ControlCall
    | ControlResult
    | ControlFailure
)
MESSAGE_TYPES: tuple[type, ...] = get_args(Message)
SCHEMA = schema_digest(MESSAGE_TYPES)
"""The digest of this build's messages, which the ends of a link compare before anything else."""

_INT32_EXTENSION = 1
_INT32 = np.dtype("<i4")
_NO_INT32 = msgpack.ExtType(_INT32_EXTENSION, b"")
"""Most columns of a plan are empty, and to make this takes longer than to write it."""

_FROM_CLIENTS = (SubmitRequest, PrefetchPrompt, DeviceSampling, AbortRequest, StopRequest)
"""Their tuples are checked entry by entry, lest what a client makes up reach other actors."""

_MAX_ASKING = 2**63 - 1
"""Askings are kept in int64 columns; msgpack brings integers of up to 64 bits without a sign."""

Convert = Callable[[Any], Any]
Getter = Callable[[Any], tuple[Any, ...]]


class MessageError(RaydixError):
    """A frame is not a message of this build, or a message holds what cannot travel."""


def _int32_view(code: int, data: bytes) -> Int32Array:
    if code != _INT32_EXTENSION or len(data) % 4:
        raise MessageError(
            f"extension {code} with {len(data)} bytes; expected {_INT32_EXTENSION} with whole int32"
        )
    return np.frombuffer(data, dtype=_INT32) if data else empty()


def _field_getter(cls: type) -> Getter:
    names = [field.name for field in fields(cls)]
    if not names:
        return lambda message: ()
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda message: (get(message),)


class _Decoder:
    """Builds one dataclass from the tuple of its fields."""

    def __init__(self, cls: type) -> None:
        hints = get_type_hints(cls)
        self._cls = cls
        self._names = [field.name for field in fields(cls)]
        self._types = [_types_of(hints[name]) for name in self._names]
        self._askings = [i for i, name in enumerate(self._names) if hints[name] is AskingId]

        # Most fields come as they are; only the others cost a call.
        converts = [(i, _convert_for(hints[name])) for i, name in enumerate(self._names)]
        self._converts: list[tuple[int, Convert]] = [
            (i, convert) for i, convert in converts if convert is not None
        ]

        tuples = [
            (name, get_args(hints[name])[0])
            for name in self._names
            if get_origin(hints[name]) is tuple
        ]
        self._entries = (
            [(name, _types_of(hint)) for name, hint in tuples] if cls in _FROM_CLIENTS else []
        )

    def __call__(self, values: tuple[Any, ...]) -> Any:
        if len(values) != len(self._names):
            raise MessageError(
                f"{self._cls.__name__} with {len(values)} fields; expected {len(self._names)}"
            )
        for name, value, types in zip(self._names, values, self._types, strict=True):
            if type(value) not in types:
                raise MessageError(f"{self._cls.__name__}.{name} is a {type(value).__name__}")

        if any(values[index] > _MAX_ASKING for index in self._askings):
            raise MessageError(f"{self._cls.__name__}.asking is larger than {_MAX_ASKING}")

        row = list(values)
        for index, convert in self._converts:
            row[index] = convert(row[index])
        message = self._cls(**dict(zip(self._names, row, strict=True)))

        for name, types in self._entries:
            if any(type(entry) not in types for entry in getattr(message, name)):
                raise MessageError(
                    f"{self._cls.__name__}.{name} has an entry of another type than "
                    f"{types[0].__name__}"
                )
        return message


def _types_of(hint: Any) -> tuple[type, ...]:
    """What msgpack may bring for a field of type `hint`."""
    if isinstance(hint, NewType):
        return _types_of(hint.__supertype__)
    if get_origin(hint) in (Union, UnionType):
        return tuple(type_ for option in get_args(hint) for type_ in _types_of(option))
    if is_dataclass(hint):
        return (tuple,)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return tuple({type(member.value) for member in hint})
    return (float, int) if hint is float else (get_origin(hint) or hint,)


def _convert_for(hint: Any) -> Convert | None:
    """What turns an unpacked value into a field of type `hint`; None: it already is one."""
    if isinstance(hint, NewType):
        return _convert_for(hint.__supertype__)

    # The only unions in messages are with None.
    if get_origin(hint) in (Union, UnionType):
        inner = [_convert_for(option) for option in get_args(hint) if option is not type(None)]
        return _optional(inner[0]) if inner[0] is not None else None

    if get_origin(hint) is tuple:
        inner_convert = _convert_for(get_args(hint)[0])
        return _each(inner_convert) if inner_convert is not None else None

    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    if is_dataclass(hint) and isinstance(hint, type):
        return _DECODERS.setdefault(hint, _Decoder(hint))
    return None


def _optional(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _each(convert: Convert) -> Convert:
    return lambda values: tuple([convert(value) for value in values])


_DECODERS: dict[type, _Decoder] = {}
for _cls in MESSAGE_TYPES:
    _DECODERS[_cls] = _Decoder(_cls)
_BY_TAG: tuple[_Decoder, ...] = tuple(_DECODERS[cls] for cls in MESSAGE_TYPES)
_GETTERS: dict[type, Getter] = {cls: _field_getter(cls) for cls in _DECODERS}
_TAGS: dict[type, int] = {cls: tag for tag, cls in enumerate(MESSAGE_TYPES)}


def _pack_default(value: Any) -> Any:
    """Turn what msgpack does not know by itself into what it knows."""
    if isinstance(value, np.ndarray):
        if value.dtype != _INT32 or value.ndim != 1:
            raise MessageError(
                f"array of {value.dtype} with shape {value.shape}; expected one dimension of int32"
            )
        return msgpack.ExtType(_INT32_EXTENSION, value.tobytes()) if len(value) else _NO_INT32
    getter = _GETTERS.get(type(value))
    if getter is not None:
        return getter(value)
    if isinstance(value, np.integer):
        return int(value)
    raise MessageError(f"{type(value).__name__} cannot travel in a message")


def encode(message: Message) -> bytes:
    """The frame body of a message. Raises MessageError if it, or a field, cannot travel."""
    cls = type(message)
    tag = _TAGS.get(cls)
    if tag is None:
        raise MessageError(f"{cls.__name__} is not a message; list it in codec.Message")
    try:
        packed: bytes = msgpack.packb((tag, *_GETTERS[cls](message)), default=_pack_default)
    except (TypeError, ValueError, OverflowError) as error:
        raise MessageError(f"{cls.__name__}: {error}") from error
    return packed


def decode(body: bytes) -> Message:
    """The message of a frame body. Raises MessageError for what this build does not encode."""
    try:
        values = msgpack.unpackb(body, ext_hook=_int32_view, use_list=False, strict_map_key=False)
        tag = values[0]
        if type(tag) is not int or not 0 <= tag < len(_BY_TAG):
            raise MessageError(f"unknown message tag {tag!r}; this build knows {len(_BY_TAG)}")
        message: Message = _BY_TAG[tag](values[1:])
    except (msgpack.UnpackException, ValueError, TypeError, LookupError) as error:
        raise MessageError(f"malformed message of {len(body)} bytes: {error}") from error
    return message
