"""What all JSON of the HTTP interface has in common."""

from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from raydix.runtime.api.prompts import is_unicode

T = TypeVar("T")
K = TypeVar("K")

MAX_FIELDS = 1024
"""The most fields of one JSON object. Each that is wrong costs an error of its own."""
MAX_TURNS = 16 << 10
"""Messages of a conversation, and parts of all of them: all streams wait while they are checked."""
MAX_TOOLS = 1024
"""The most tools of a request."""
_PARTS = ("content", "tool_calls", "output", "summary")
"""The lists that a message may have; what is in its content may have one of its own."""


def is_none(value: object) -> bool:
    """Whether a field is left out of an answer."""
    return value is None


def _require_unicode(text: str) -> str:
    if not is_unicode(text):
        raise ValueError("It holds half of a surrogate pair, which is no Unicode text.")
    return text


Text = Annotated[str, AfterValidator(_require_unicode)]
"""A string that can be tokenised, and sent back: JSON can tell others."""

Nothing = Annotated[list[Any], Field(max_length=0)]
"""An empty list, which asks for nothing; any other one is not supported."""


NoText = Annotated[str, Field(max_length=0)]
"""An empty string, which says nothing; any other one is not supported."""


def _require_few_fields(values: Any) -> Any:
    if isinstance(values, dict) and len(values) > MAX_FIELDS:
        raise ValueError(f"It has {len(values)} fields; expected at most {MAX_FIELDS}.")
    return values


def _list_in(values: Any, name: str) -> list[Any]:
    """The list of this name, if there is one."""
    given = values.get(name) if isinstance(values, dict) else None
    return given if isinstance(given, list) else []


def _require_few_turns(turns: Any) -> Any:
    if not isinstance(turns, list):
        return turns
    parts = [part for turn in turns for name in _PARTS for part in _list_in(turn, name)]
    num_parts = len(parts) + sum(len(_list_in(part, "content")) for part in parts)
    for number, what in ((len(turns), "messages"), (num_parts, "parts")):
        if number > MAX_TURNS:
            raise ValueError(f"It has {number} {what}; expected at most {MAX_TURNS}.")
    return turns


Items = Annotated[list[T], Field(fail_fast=True)]
"""A list whose first wrong item is told, and no other: a body has room for millions of them."""

Words = Annotated[Items[T], Field(max_length=16)]
"""A list of a few words that Raydix knows."""

Parts = Annotated[Items[T], Field(max_length=MAX_TURNS)]
"""A list of what a conversation is made of."""

Tools = Annotated[Items[T], Field(max_length=MAX_TOOLS)]
"""A list of tools, or of what names them."""

Turns = Annotated[Items[T], Field(min_length=1), BeforeValidator(_require_few_turns)]
"""The messages of a conversation, counted before they are looked at."""

Table = Annotated[dict[K, T], BeforeValidator(_require_few_fields)]
"""A JSON object whose names are the client's."""

OrAbsent = Annotated[T | None, Field(exclude_if=is_none)]
"""A field of an answer that is left out where it is None."""


class WireRequest(BaseModel):
    """What a client sends. A field that is not declared is refused; null is as good as absent."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        _require_few_fields(values)
        return {name: value for name, value in values.items() if value is not None}


class WireAnswer(BaseModel):
    """What a client receives."""

    model_config = ConfigDict(frozen=True)


class NamedEvent(WireAnswer):
    """A piece of a stream; its type tells which of the fields it has."""

    type: str
