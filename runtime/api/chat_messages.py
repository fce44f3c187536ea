"""Messages as chat templates take them."""

from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

from raydix.errors import BadRequest

TRIAL_ARGUMENTS = '{"place":"a"}'
"""The arguments of a call in a trial: JSON as nothing else would write it."""


def trial_turns(*, arguments: Any, **said: Any) -> list[dict[str, Any]]:
    """A conversation with one call, by which a template shows what it takes.

    said: what the turn that calls has besides, such as `content`.
    """
    function = {"name": "look", "arguments": arguments}
    call = {"id": "a12345678", "type": "function", "function": function}
    return [
        {"role": "user", "content": "a"},
        {"role": "assistant", "tool_calls": [call], **said},
        {"role": "tool", "tool_call_id": "a12345678", "name": "look", "content": "b"},
    ]


def with_text(message: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The message with one text for its content: parts become lines.

    Raises BadRequest unless it has a role and text, and no more than text. Templates would leave a
    mark of an image, and write None where there is nothing; most of them know no parts.
    """
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise BadRequest(
            f"Message {number} has no role; expected a dict such as "
            "{'role': 'user', 'content': 'Hello'}."
        )
    content = message.get("content")
    if content is None and not message.get("tool_calls"):
        raise BadRequest(
            f"Message {number}, of role {message['role']!r}, has no content; expected text."
        )
    if not isinstance(content, str | list | tuple | None):
        raise BadRequest(
            f"Message {number}, of role {message['role']!r}, has {content!r:.80} for its content; "
            "expected text."
        )
    if not isinstance(content, list | tuple):
        return dict(message)
    return {**message, "content": "\n".join(_text_of(part) for part in content)}


def _text_of(part: Any) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if kind != "text":
        raise BadRequest(
            f"A message has a part of type {kind!r}; expected parts of type 'text' alone. "
            "Remove it: models are served without images, sound and the like."
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise BadRequest(
            f"A message has a part with {text!r:.80} for its text; expected a part such as "
            "{'type': 'text', 'text': 'Hello'}."
        )
    return text


def with_reasoning(message: dict[str, Any], number: int) -> dict[str, Any]:
    """The message with what was reasoned under each of the names that templates have for it.

    Raises BadRequest for what is no text.
    """
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if not isinstance(reasoning, str):
        raise BadRequest(
            f"Message {number} has {reasoning!r:.80} for its reasoning_content; expected text."
        )
    return {
        **message,
        "reasoning_content": reasoning,
        "reasoning": reasoning,
        "thinking": reasoning,
    }


def with_text_in_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """The message with its content at the end of what was reasoned."""
    return {**message, "content": "", "thinking": f"{message['thinking']}\n{message['content']}"}


def template_tools(tools: Any) -> list[Any]:
    """The tools as templates take them: without `strict`, which is said to the server alone.

    Raises BadRequest for what is no list.
    """
    if not isinstance(tools, list | tuple):
        raise BadRequest(
            f"The tools are {tools!r:.80}; expected a list of dicts such as "
            "{'type': 'function', 'function': {'name': 'look', 'parameters': {...}}}."
        )
    return [_template_tool(each) for each in tools]


def _template_tool(tool: Any) -> Any:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or "strict" not in function:
        return tool
    told = {name: value for name, value in function.items() if name != "strict"}
    return {**tool, "function": told}


def with_argument_objects(message: dict[str, Any], number: int) -> dict[str, Any]:
    """The message with an object for the JSON of each call's arguments.

    Raises BadRequest for arguments that are no object, and calls that are none.
    """
    calls = message.get("tool_calls")
    if not calls:
        return message
    if not isinstance(calls, list | tuple):
        raise BadRequest(f"Message {number} has {calls!r:.80} for its tool_calls; expected a list.")
    place = f"Message {number}, tool_calls"
    changed = [_with_object(call, f"{place}.{i}") for i, call in enumerate(calls)]
    return {**message, "tool_calls": changed}


def _with_object(call: Any, place: str) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        # The template says what it misses.
        return call
    try:
        arguments = from_json(function["arguments"])
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise BadRequest(
            f"{place} has {function['arguments']!r:.80} for its arguments; this checkpoint's chat "
            "template needs the JSON of an object. Repair it, or leave the call out."
        )
    return {**call, "function": {**function, "arguments": arguments}}
