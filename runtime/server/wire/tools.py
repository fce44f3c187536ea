"""JSON of tools, and of calls of them."""

from collections.abc import Sequence
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import Field

from raydix.errors import BadParameter
from raydix.runtime.server.wire.base import (
    MAX_TOOLS,
    Items,
    OrAbsent,
    Table,
    Text,
    WireAnswer,
    WireRequest,
)


class ToolMode(Enum):
    """What an answer may be where there are tools."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"
    """Calls, one at least."""
    NAMED = "named"
    """A call of one tool."""


class FunctionDefinition(WireRequest):
    """A function that the client can call."""

    name: Annotated[Text, Field(min_length=1)]
    description: Text | None = None
    parameters: Table[str, Any] | None = None
    """The JSON schema of its arguments."""
    strict: bool | None = None


class Tool(WireRequest):
    """A tool; there is one kind of them."""

    type: Literal["function"]
    function: FunctionDefinition


class WrittenCall(WireRequest):
    """The function of an earlier call."""

    name: Text
    arguments: Text
    """JSON, as the answer had it."""


class EarlierCall(WireRequest):
    """A call in an earlier turn."""

    id: Text
    type: Literal["function"] = "function"
    function: WrittenCall
    index: int | None = None
    """Its place, in what a client has put together from a stream."""


class FunctionCall(WireAnswer):
    """What is called, and the JSON of its arguments."""

    name: str
    arguments: str


class ToolCall(WireAnswer):
    """A call that the model makes."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class FunctionDelta(WireAnswer):
    """What is new of a call's function."""

    name: OrAbsent[str] = None
    arguments: str


class ToolCallDelta(WireAnswer):
    """What is new of a call; the first has all but the arguments."""

    index: int
    id: OrAbsent[str] = None
    type: OrAbsent[Literal["function"]] = None
    function: FunctionDelta


def chosen_tools(
    tools: Sequence[Tool] | None, choice: str | dict[str, Any] | None
) -> tuple[ToolMode, frozenset[str] | None]:
    """What is to be called, and which tools may be; None: all may.

    Raises BadParameter for what is no choice, or needs tools that are not given.
    """
    given = {tool.function.name for tool in tools or ()}
    match choice:
        case None | "auto" | "none":
            return ToolMode(choice or "auto"), None
        case "required":
            mode, names = ToolMode.REQUIRED, frozenset(given)
        case {"type": "function", "function": {"name": str(name)}}:
            mode, names = ToolMode.NAMED, frozenset({name})
        case {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto" | "required" as told, "tools": list(allowed)},
        } if len(allowed) <= MAX_TOOLS:
            mode, names = ToolMode(told), frozenset(map(_name_of_allowed, allowed))
        case _:
            problem = (
                f"is {choice!r:.80}; expected 'none', 'auto', 'required', or an object of the type "
                f"'function' or 'allowed_tools' that names some of the tools, at most {MAX_TOOLS}."
            )
            raise BadParameter("tool_choice", problem)
    if not names or not names <= given:
        lacking = ", ".join(sorted(names - given)) or "there are none"
        raise BadParameter("tool_choice", f"wants a tool that is not given: {lacking}.")
    return mode, names


def _name_of_allowed(tool: Any) -> str:
    match tool:
        case {"type": "function", "function": {"name": str(name)}} | {"name": str(name)}:
            return name
    raise BadParameter("tool_choice", f"allows {tool!r:.80}; expected a function by its name.")


def template_tools(tools: Items[Tool]) -> list[dict[str, Any]]:
    """The tools as chat templates take them."""
    return [each.model_dump(exclude_unset=True) for each in tools]


def template_calls(calls: Items[EarlierCall]) -> list[dict[str, Any]]:
    """Earlier calls as chat templates take them."""
    return [
        {
            "id": each.id,
            "type": each.type,
            # Templates would write nothing, where there must be an object.
            "function": {
                "name": each.function.name,
                "arguments": each.function.arguments or "{}",
            },
        }
        for each in calls
    ]
