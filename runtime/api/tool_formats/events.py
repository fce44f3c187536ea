"""What a model's text says: content, and calls of tools piece by piece."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call of a tool, whose arguments follow."""

    name: str
    call_id: str | None = None
    """The id that the model wrote; None where its format has none."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """A piece of the JSON of the latest call's arguments."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The latest call is whole."""


@dataclass(frozen=True, slots=True)
class CallBroken:
    """The latest call is none after all; `text` is all that the model wrote of it."""

    text: str


Event = Content | CallBegun | Arguments | CallEnded | CallBroken
Reading = Generator[Event | None, None, Result]
"""Reads text as far as it has come: yields events, and None where it needs more text."""
