"""What a model's text says: reasoning, content, and calls of tools, all piece by piece."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ReasoningBegun:
    """What is read from here on is reasoning, and the mark that ends it."""


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningEnded:
    """What is read from here on is no reasoning."""


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


Event = Reasoning | Content | CallBegun | Arguments | CallEnded | CallBroken
"""What is told of an answer."""
ReasoningEdge = ReasoningBegun | ReasoningEnded
"""Where reasoning begins and ends among the tokens, for who counts them."""
Reading = Generator[Event | ReasoningEdge | None, None, Result]
"""Reads text as far as it has come: yields events, and None where it needs more text."""
