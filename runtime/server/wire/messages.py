"""Messages of a conversation."""

from collections.abc import Sequence
from typing import Any, Literal

from raydix.errors import BadParameter
from raydix.runtime.server.wire.base import Items, NoText, Nothing, Text, WireRequest


class TextPart(WireRequest):
    """A part of a message. Raydix serves text alone."""

    type: Literal["text", "input_text", "output_text"]
    text: Text


class Message(WireRequest):
    """One turn. A `developer` speaks as `system`, the word that templates know."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Items[TextPart]
    name: Text | None = None

    # What an earlier answer, of whatever server, told beside its text, if that was nothing.
    tool_calls: Nothing | None = None
    annotations: Nothing | None = None
    reasoning_content: NoText | None = None
    reasoning: NoText | None = None
    refusal: NoText | None = None


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as `AsyncLLM.chat` takes them."""
    return [_template_message(each) for each in messages]


def _template_message(message: Message) -> dict[str, Any]:
    content: Any = message.content
    if not isinstance(content, str):
        content = [{"type": "text", "text": part.text} for part in content]
    role = "system" if message.role == "developer" else message.role
    turn = {"role": role, "content": content}
    return turn if message.name is None else {**turn, "name": message.name}


def ending_of_prompt(
    *, add_generation_prompt: bool | None, continue_final_message: bool | None
) -> dict[str, bool]:
    """What the template is told of the prompt's end, as far as it was given.

    Raises BadParameter if both are asked for.
    """
    if add_generation_prompt and continue_final_message:
        problem = "is true, and so is add_generation_prompt; a turn goes on or begins. Set one."
        raise BadParameter("continue_final_message", problem)
    given = {
        "add_generation_prompt": add_generation_prompt,
        "continue_final_message": continue_final_message,
    }
    return {name: value for name, value in given.items() if value is not None}
