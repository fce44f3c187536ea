"""JSON of tools, and of calls of them."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from raydix.errors import BadParameter
from raydix.runtime.server.wire.base import Items, OrAbsent, Table, Text, WireAnswer, WireRequest


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


def check_tool_choice(tools: Sequence[Tool] | None, choice: str | dict[str, Any] | None) -> None:
    """Raise BadParameter for what would have to be enforced, or needs tools that are not given."""
    if choice not in (None, "none", "auto"):
        told = choice if isinstance(choice, str) else choice.get("type")
        problem = (
            f"of {told!r:.80} is not enforced yet; expected 'auto' or 'none'. "
            "Leave it out, and ask for the call in a message."
        )
        raise BadParameter("tool_choice", problem)
    for number, tool in enumerate(tools or ()):
        if tool.function.strict:
            problem = "is true, which is not enforced yet. Leave it out, and check the arguments."
            raise BadParameter(f"tools.{number}.function.strict", problem)


def template_tools(tools: Items[Tool]) -> list[dict[str, Any]]:
    """The tools as chat templates take them."""
    return [each.model_dump(exclude_unset=True, exclude={"function": {"strict"}}) for each in tools]


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
