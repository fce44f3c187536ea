"""Messages of a conversation."""

from collections.abc import Sequence
from typing import Any, Literal

from raydix.runtime.server.wire.base import Items, Text, WireRequest


class TextPart(WireRequest):
    """A part of a message. Raydix serves text alone."""

    type: Literal["text", "input_text", "output_text"]
    text: Text


class Message(WireRequest):
    """One turn. A `developer` speaks as `system`, the word that templates know."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Items[TextPart]
    name: Text | None = None


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
