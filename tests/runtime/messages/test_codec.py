from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from types import UnionType
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.msgpack import Ext

from raydix.ids import AskingId, RequestId
from raydix.runtime.messages.arrays import int32_array
from raydix.runtime.messages.client import (
    AbortRequest,
    PrefetchPrompt,
    RequestDelta,
    StopRequest,
    SubmitRequest,
    TokenFrame,
)
from raydix.runtime.messages.codec import MESSAGE_TYPES, MessageError, decode, encode
from raydix.runtime.messages.hello import Hello
from raydix.runtime.messages.host import ProcessDrained
from raydix.runtime.messages.line import Line
from raydix.runtime.messages.plan import DeviceSampling, StepPlan, TransfersDone

_INT32 = st.integers(-(2**31), 2**31 - 1)


def _strategy(hint: Any) -> st.SearchStrategy[Any]:
    if isinstance(hint, NewType):
        return _strategy(hint.__supertype__)
    if get_origin(hint) in (Union, UnionType):
        return st.one_of(
            *[st.none() if part is type(None) else _strategy(part) for part in get_args(hint)]
        )

    if get_origin(hint) is tuple:
        return st.lists(_strategy(get_args(hint)[0]), max_size=3).map(tuple)
    if get_origin(hint) is dict:
        return st.dictionaries(st.text(max_size=8), st.integers(0, 2**40), max_size=3)
    if get_origin(hint) is np.ndarray:
        return st.lists(_INT32, max_size=5).map(int32_array)

    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(list(hint))
    if is_dataclass(hint) and isinstance(hint, type):
        return _instances(hint)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        hints = get_type_hints(hint)
        return st.builds(hint, **{name: _strategy(hints[name]) for name in hint.__struct_fields__})
    if hint is Line:
        return st.builds(Line, st.floats(allow_nan=False), st.floats(allow_nan=False))

    scalars: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(-(2**63), 2**63 - 1),
        float: st.floats(allow_nan=False),
        bool: st.booleans(),
        str: st.text(max_size=8),
        bytes: st.binary(max_size=40),
    }
    return scalars[hint]


def _instances(cls: type) -> st.SearchStrategy[Any]:
    hints = get_type_hints(cls)
    return st.builds(cls, **{field.name: _strategy(hints[field.name]) for field in fields(cls)})


def _example(cls: type) -> Any:
    """One message of a type, the same each time."""
    found: list[Any] = []

    @settings(max_examples=1)
    @given(_instances(cls))
    def note(message: Any) -> None:
        found.append(message)

    note()
    return found[0]


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray):
        return (
            isinstance(right, np.ndarray)
            and left.dtype == right.dtype
            and np.array_equal(left, right)
        )
    if is_dataclass(left):
        return type(left) is type(right) and all(
            _same(getattr(left, field.name), getattr(right, field.name)) for field in fields(left)
        )
    if isinstance(left, tuple):
        return isinstance(right, tuple) and len(left) == len(right) and all(map(_same, left, right))
    return type(left) is type(right) and bool(left == right)


@pytest.mark.parametrize("cls", MESSAGE_TYPES, ids=lambda cls: cls.__name__)
def test_every_message_survives_the_round_trip(cls: type) -> None:
    @settings(max_examples=20)
    @given(_instances(cls))
    def round_trip(message: Any) -> None:
        assert _same(message, decode(encode(message)))

    round_trip()


def test_decoded_columns_are_read_only() -> None:
    decoded = decode(encode(TransfersDone(rank=0, transfer_ids=int32_array([1, 2]))))

    assert isinstance(decoded, TransfersDone)
    with pytest.raises(ValueError, match="read-only"):
        decoded.transfer_ids[0] = 7


def test_numpy_integers_travel_as_integers() -> None:
    decoded = decode(encode(ProcessDrained(pid=np.int32(3))))  # type: ignore[arg-type]

    assert decoded == ProcessDrained(pid=3)


def body_of(cls: type, values: Any) -> bytes:
    """A frame body that says it is a message of `cls`."""
    return bytes([MESSAGE_TYPES.index(cls)]) + msgspec.msgpack.encode(values)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00",
        b"\x01\xc1",
        body_of(Hello, 7),
        body_of(Hello, []),
        body_of(Hello, {}),
        bytes([len(MESSAGE_TYPES)]) + msgspec.msgpack.encode({}),
        body_of(Hello, {"role": "no such role", "name": "a", "incarnation": 1, "pid": 1}),
        body_of(TokenFrame, {"deltas": [[1]]}),
        body_of(TokenFrame, {"askings": 5}),
        body_of(TokenFrame, {"token_ids": Ext(1, b"abc")}),
        body_of(TokenFrame, {"token_ids": Ext(9, b"abcd")}),
        body_of(TokenFrame, {}) + b"\x00",
        # A field that nobody knows, with lists in lists.
        bytes([MESSAGE_TYPES.index(TokenFrame)]) + b"\x81\xa3odd" + b"\x91" * 100_000 + b"\xc0",
    ],
    ids=repr,
)
def test_malformed_bytes_are_a_message_error(body: bytes) -> None:
    with pytest.raises(MessageError):
        decode(body)


@given(st.binary(max_size=60))
@settings(max_examples=300)
def test_random_bytes_never_raise_anything_but_a_message_error(body: bytes) -> None:
    try:
        decode(body)
    except MessageError:
        return


@dataclass(frozen=True)
class NotListed:
    number: int = 1


@pytest.mark.parametrize(
    "message",
    [
        NotListed(),
        TokenFrame(deltas=(object(),)),  # type: ignore[arg-type]
        StepPlan(step=2**70),
        AbortRequest(asking=AskingId(1), request_id=object()),  # type: ignore[arg-type]
        TransfersDone(rank=0, transfer_ids=np.zeros(2, np.int64)),  # type: ignore[arg-type]
        TransfersDone(rank=0, transfer_ids=np.zeros((2, 2), np.int32)),
        RequestDelta(asking=AskingId(1), request_id=RequestId("only nested")),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_cannot_travel_is_refused_when_encoding(message: Any) -> None:
    with pytest.raises(MessageError):
        encode(message)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("asking", "1"),
        ("request_id", 5),
        ("token_ids", (1, 2)),
        ("sampling", None),
        ("max_tokens", 1.5),
        ("stop_token_ids", 3),
        ("priority", "high"),
        ("priority", True),
        ("cache_salt", 3),
        ("session_id", b"bytes"),
        ("routing_key", 1),
        ("deadline_s", "1"),
    ],
)
def test_what_clients_send_is_refused_if_a_field_has_the_wrong_type(
    field: str, value: object
) -> None:
    right = SubmitRequest(
        asking=AskingId(1),
        request_id=RequestId("r"),
        token_ids=int32_array([1]),
        sampling=DeviceSampling(seed=1),
        max_tokens=None,
    )
    decode(encode(right))
    wrong = encode(replace(right, **{field: value}))
    with pytest.raises(MessageError, match=rf"SubmitRequest .* at `\$\.{field}"):
        decode(wrong)


@pytest.mark.parametrize(
    "cls", [each for each in MESSAGE_TYPES if each is not TokenFrame], ids=lambda cls: cls.__name__
)
def test_every_message_is_refused_if_any_field_has_the_wrong_type(cls: type) -> None:
    message = _example(cls)
    packed, hints = msgspec.msgpack.decode(encode(message)[1:]), get_type_hints(cls)
    for field in fields(cls):
        odd: Any = [] if is_dataclass(hints[field.name]) else {"odd": None}
        wrong = body_of(cls, {**packed, field.name: odd})
        with pytest.raises(MessageError, match=rf"{cls.__name__} .* at `\$\.{field.name}"):
            decode(wrong)


@pytest.mark.parametrize(
    "cls", [SubmitRequest, PrefetchPrompt, AbortRequest, StopRequest], ids=lambda cls: cls.__name__
)
def test_an_asking_that_no_column_holds_is_refused(cls: type) -> None:
    largest = replace(_example(cls), asking=AskingId(2**63 - 1))
    assert decode(encode(largest)).asking == 2**63 - 1
    with pytest.raises(MessageError, match="asking"):
        decode(encode(replace(largest, asking=AskingId(2**63))))


def test_entries_of_a_clients_tuples_are_checked() -> None:
    submit = _example(SubmitRequest)
    for odd in ("word", 1.5, None, True):
        with pytest.raises(MessageError, match="stop_token_ids"):
            decode(encode(replace(submit, stop_token_ids=(1, odd))))
        sampling = replace(submit.sampling, masked_until_min_tokens=(odd,))
        with pytest.raises(MessageError, match="masked_until_min_tokens"):
            decode(encode(replace(submit, sampling=sampling)))
