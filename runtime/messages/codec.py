"""Messages to bytes and back: a byte that tells the type, then a msgpack map of the fields.

int32 columns travel as an extension type of raw little-endian bytes and come back as read-only
views; enums travel by value. Both ends must have the same `SCHEMA`, because the first byte is a
position in `Message`. A message is decoded as its annotations say, or not at all.
"""

from typing import Any, get_args

import msgspec
import numpy as np

from raydix.errors import RaydixError
from raydix.runtime.messages.arrays import Int32Array, empty
from raydix.runtime.messages.client import (
    AbortRequest,
    ExpectRequest,
    PrefetchPrompt,
    RetainSession,
    StopRequest,
    SubmitRequest,
    TokenFrame,
    UnpinPrompt,
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
from raydix.runtime.messages.kv_events import KvNews
from raydix.runtime.messages.plan import (
    StepPlan,
    StepResult,
    StepsLeftOut,
    TransfersDone,
)
from raydix.runtime.messages.pulls import OpenStreams, PullPages, TellKeys
from raydix.runtime.messages.retention import RetainObjects
from raydix.runtime.messages.routing import EngineNews, FollowEngine
from raydix.runtime.messages.schema import schema_digest

Message = (
    Hello
    | SubmitRequest
    | ExpectRequest
    | PrefetchPrompt
    | RetainSession
    | UnpinPrompt
    | AbortRequest
    | StopRequest
    | FollowEngine
    | TokenFrame
    | EngineNews
    | KvNews
    | StepPlan
    | StepResult
    | StepsLeftOut
    | TransfersDone
    | ToHost
    | FromHost
    | AskExists
    | ReadObjects
    | WriteObjects
    | DeleteObjects
    | CancelBatch
    | RetainObjects
    | ObjectsDone
    | OpenStreams
    | PullPages
    | TellKeys
    | ControlCall
    | ControlResult
    | ControlFailure
)
MESSAGE_TYPES: tuple[type, ...] = get_args(Message)
SCHEMA = schema_digest(MESSAGE_TYPES)
"""The digest of this build's messages, which the ends of a link compare before anything else."""

_INT32_EXTENSION = 1
_INT32 = np.dtype("<i4")
_NO_INT32 = msgspec.msgpack.Ext(_INT32_EXTENSION, b"")
"""Most columns of a plan are empty, and to make this takes longer than to write it."""

_ASKINGS = (SubmitRequest, ExpectRequest, PrefetchPrompt, AbortRequest, StopRequest)
_MAX_ASKING = 2**63 - 1
"""Askings are kept in int64 columns; msgpack brings integers of up to 64 bits without a sign."""


class MessageError(RaydixError):
    """A frame is not a message of this build, or a message holds what cannot travel."""


def _int32_view(code: int, data: memoryview) -> Int32Array:
    if code != _INT32_EXTENSION or len(data) % 4:
        raise ValueError(
            f"extension {code} with {len(data)} bytes; expected {_INT32_EXTENSION} with whole int32"
        )
    return np.frombuffer(data, dtype=_INT32) if data else empty()


def _require_column(kind: type, value: Any) -> Int32Array:
    if not isinstance(value, np.ndarray):
        raise TypeError(f"a {type(value).__name__} stands where a column belongs")
    return value


def _pack_foreign(value: Any) -> Any:
    """Turn what msgpack does not know by itself into what it knows."""
    if isinstance(value, np.ndarray):
        if value.dtype != _INT32 or value.ndim != 1:
            raise TypeError(
                f"array of {value.dtype} with shape {value.shape}; expected one dimension of int32"
            )
        return msgspec.msgpack.Ext(_INT32_EXTENSION, value.tobytes()) if len(value) else _NO_INT32
    if isinstance(value, np.integer):
        return int(value)
    raise TypeError(f"{type(value).__name__} cannot travel in a message")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_pack_foreign)
_DECODERS: tuple[msgspec.msgpack.Decoder[Message], ...] = tuple(
    [
        msgspec.msgpack.Decoder(cls, ext_hook=_int32_view, dec_hook=_require_column)
        for cls in MESSAGE_TYPES
    ]
)
_TAGS: dict[type, bytes] = {cls: bytes([tag]) for tag, cls in enumerate(MESSAGE_TYPES)}


def encode(message: Message) -> bytes:
    """The frame body of a message. Raises MessageError if it, or a field, cannot travel."""
    cls = type(message)
    tag = _TAGS.get(cls)
    if tag is None:
        raise MessageError(f"{cls.__name__} is not a message; list it in codec.Message")
    try:
        return tag + _ENCODER.encode(message)
    except (TypeError, ValueError, OverflowError) as error:
        raise MessageError(f"{cls.__name__}: {error}") from error


def decode(body: bytes) -> Message:
    """The message of a frame body. Raises MessageError for what this build does not encode."""
    if not body or body[0] >= len(_DECODERS):
        raise MessageError(f"unknown message tag; this build knows {len(_DECODERS)}")
    cls = MESSAGE_TYPES[body[0]]
    try:
        message: Message = _DECODERS[body[0]].decode(memoryview(body)[1:])
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as error:
        raise MessageError(f"malformed {cls.__name__} of {len(body)} bytes: {error}") from error
    if isinstance(message, _ASKINGS) and message.asking > _MAX_ASKING:
        raise MessageError(f"{cls.__name__}.asking is larger than {_MAX_ASKING}")
    return message
