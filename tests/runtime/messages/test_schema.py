"""What makes two builds understand each other, and what does not."""

from dataclasses import make_dataclass
from enum import Enum
from typing import Any, NamedTuple

import pytest

from raydix.ids import AskingId
from raydix.runtime.messages.arrays import Int32Array
from raydix.runtime.messages.codec import MESSAGE_TYPES, SCHEMA
from raydix.runtime.messages.schema import schema_digest

Colour = Enum("Colour", {"RED": 1})
MoreColour = Enum("Colour", {"RED": 1, "BLUE": 2})


def digest(*field_types: Any, name: str = "Said") -> bytes:
    fields = [(f"field{number}", each) for number, each in enumerate(field_types)]
    return schema_digest([make_dataclass(name, fields)])


Inner = make_dataclass("Inner", [("a", int)])
Pair = NamedTuple("Both", [("a", int), ("b", int)])  # noqa: UP014 - both have one name
Triple = NamedTuple("Both", [("a", int), ("b", int), ("c", int)])  # noqa: UP014
InnerWithMore = make_dataclass("Inner", [("a", int), ("b", int)])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((int,), (str,)),
        ((int,), (int, int)),
        ((int | None,), (int,)),
        ((tuple[int, ...],), (tuple[str, ...],)),
        ((dict[str, int],), (dict[str, float],)),
        ((Colour,), (MoreColour,)),
        ((tuple[Inner, ...],), (tuple[InnerWithMore, ...],)),
        ((Int32Array,), (int,)),
        ((Pair,), (Triple,)),
    ],
)
def test_whatever_changes_a_message_changes_the_digest(one: Any, other: Any) -> None:
    assert digest(*one) != digest(*other)
    assert digest(*one) == digest(*one)


def test_names_for_one_type_are_the_same() -> None:
    assert digest(AskingId) == digest(int)


def test_the_order_of_messages_counts() -> None:
    assert schema_digest(MESSAGE_TYPES) == SCHEMA != schema_digest(MESSAGE_TYPES[::-1])
