"""Messages of a conversation."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

from pydantic import Field, ValidationInfo, field_validator, model_validator

from raydix.errors import BadParameter
from raydix.runtime.server.wire.base import Items, NoText, Nothing, Text, WireRequest
from raydix.runtime.server.wire.tools import EarlierCall, template_calls

_TextType = Literal["text", "input_text", "output_text"]


class TextPart(WireRequest):
    """A part of a message. Raydix serves text alone."""

    type: _TextType
    text: Text

    @model_validator(mode="before")
    @classmethod
    def _refuse_others(cls, values: Any) -> Any:
        """Name what other parts are, of which else a text would be said to be missing."""
        kind = values.get("type", "text") if isinstance(values, dict) else "text"
        if not isinstance(kind, str) or kind in get_args(_TextType):
            return values
        raise ValueError(
            f"Input is of type {kind!r:.40}; expected 'text', as models are served without images, "
            "sound and the like"
        )


class Message(WireRequest):
    """One turn. A `developer` speaks as `system`, the word that templates know."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    tool_calls: Items[EarlierCall] = Field(default_factory=list)
    content: Text | Items[TextPart] | None = Field(default=None, validate_default=True)
    """None in a turn that calls tools and says nothing."""
    name: Text | None = None
    tool_call_id: Text | None = None
    """The call that a tool answers."""

    reasoning_content: Text | None = None
    """What an earlier answer reasoned; templates leave it out where it is of no more use."""
    reasoning: Text | None = None
    """The same by another name."""

    # What an earlier answer, of whatever server, told beside its text, if that was nothing.
    annotations: Nothing | None = None
    refusal: NoText | None = None
    provider_specific_fields: dict[str, Any] | None = None
    """What LiteLLM adds to an answer, which has it elsewhere as well; it has no effect."""

    @field_validator("content")
    @classmethod
    def _says_something(
        cls, content: str | list[TextPart] | None, info: ValidationInfo
    ) -> str | list[TextPart] | None:
        # Of calls that are wrong there is an error of their own.
        if content is None and not info.data.get("tool_calls", True):
            raise ValueError("Field required")
        return content


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as `AsyncLLM.chat` takes them."""
    return [_template_message(each) for each in messages]


def _template_message(message: Message) -> dict[str, Any]:
    content: Any = message.content
    if isinstance(content, list):
        content = [{"type": "text", "text": part.text} for part in content]
    role = "system" if message.role == "developer" else message.role
    turn = {"role": role, "content": content}
    if message.name is not None:
        turn["name"] = message.name
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    if reasoning := message.reasoning_content or message.reasoning:
        turn["reasoning_content"] = reasoning
    if message.tool_calls:
        turn["tool_calls"] = template_calls(message.tool_calls)
    return turn


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
