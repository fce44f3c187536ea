"""A request of Anthropic's interface as a chat: its turns, tools and variables."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from raydix.errors import BadParameter
from raydix.runtime.server.wire.anthropic import (
    AnthropicMessage,
    AnthropicTool,
    PromptFields,
    RedactedThinking,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from raydix.runtime.server.wire.chat import TemplateFields
from raydix.runtime.server.wire.messages import Message, TextPart
from raydix.runtime.server.wire.tools import EarlierCall, FunctionDefinition, Tool, WrittenCall

_BILLING = "x-anthropic-billing-header:"
"""A block of Claude Code's system prompt that differs from request to request. It is meant for
Anthropic's own servers; in front of a prompt it would make all pages behind it new."""


def turns_of_fields(fields: PromptFields) -> list[Message]:
    """The turns, the system's first. Raises BadParameter for what no chat can be."""
    turns = []
    if system := _system(fields.system):
        turns.append(Message(role="system", content=system))
    for number, message in enumerate(fields.messages):
        turns += _turns(message, f"messages.{number}")
    return turns


def template_fields_of(fields: PromptFields) -> TemplateFields:
    """What the chat template is told besides. Raises BadParameter."""
    effort = None if fields.output_config is None else fields.output_config.effort
    switch: dict[str, Any] = {}
    if fields.thinking is not None:
        reasons = fields.thinking.type != "disabled"
        switch = {"enable_thinking": reasons, "thinking": reasons}
    return TemplateFields(
        tools=[_tool(each) for each in fields.tools or ()],
        reasoning_effort=effort,
        chat_template_kwargs=switch,
        continue_final_message=_goes_on(fields.messages[-1], len(fields.messages) - 1) or None,
    )


def tool_choice_of_fields(fields: PromptFields) -> str | dict[str, Any] | None:
    """The choice of a tool as that of a chat. Raises BadParameter."""
    choice = fields.tool_choice
    if choice is None:
        return None
    if (choice.type == "tool") != (choice.name is not None):
        problem = "goes with the type 'tool', and with no other. Name the tool, or leave it out."
        raise BadParameter("tool_choice.name", problem)
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return "required" if choice.type == "any" else choice.type


def _tool(tool: AnthropicTool) -> Tool:
    told = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.input_schema,
        "strict": tool.strict,
    }
    # What is not given must stay so: templates write each field that there is.
    function = {name: value for name, value in told.items() if value is not None}
    return Tool(type="function", function=FunctionDefinition.model_validate(function))


def _system(system: str | list[TextBlock] | None) -> str | list[TextPart] | None:
    if system is None or isinstance(system, str):
        return system
    return _parts([each for each in system if not each.text.startswith(_BILLING)])


def _goes_on(last: AnthropicMessage, number: int) -> bool:
    """Whether the model is to go on with the last turn, which it has begun."""
    if last.role != "assistant":
        return False
    if not isinstance(last.content, str) and any(
        isinstance(block, ToolUseBlock) for block in last.content
    ):
        problem = "calls a tool and is the last one; expected the result of the call behind it."
        raise BadParameter(f"messages.{number}", problem)
    return True


def _turns(message: AnthropicMessage, place: str) -> Iterator[Message]:
    if isinstance(message.content, str):
        yield Message(role=message.role, content=message.content)
    elif message.role == "assistant":
        yield _own_turn(message.content, place)
    else:
        yield from _others_turns(message, place)


def _others_turns(message: AnthropicMessage, place: str) -> Iterator[Message]:
    """The turns of a message that is not the model's: results of tools are turns of their own."""
    said: list[TextBlock] = []
    for number, block in enumerate(message.content):
        match block:
            case TextBlock():
                said.append(block)
            case ToolResultBlock() if message.role == "user":
                if said:
                    yield Message(role="user", content=_parts(said))
                    said = []
                content = block.content if isinstance(block.content, str) else _parts(block.content)
                yield Message(role="tool", tool_call_id=block.tool_use_id, content=content)
            case _:
                raise _misplaced(f"{place}.content.{number}", message.role)
    if said:
        yield Message(role=message.role, content=_parts(said))


def _own_turn(blocks: Sequence[object], place: str) -> Message:
    reasoning: list[str] = []
    said: list[TextBlock] = []
    calls: list[EarlierCall] = []
    for number, block in enumerate(blocks):
        match block:
            case ThinkingBlock():
                reasoning.append(block.thinking)
            case RedactedThinking():
                pass
            case TextBlock():
                said.append(block)
            case ToolUseBlock():
                # As models write it, so that the next prompt has the same tokens.
                arguments = json.dumps(block.input, ensure_ascii=False)
                function = WrittenCall(name=block.name, arguments=arguments)
                calls.append(EarlierCall(id=block.id, function=function))
            case _:
                raise _misplaced(f"{place}.content.{number}", "assistant")
    return Message(
        role="assistant",
        content=_parts(said) if said or not calls else None,
        reasoning_content="\n".join(reasoning) or None,
        tool_calls=calls,
    )


def _misplaced(place: str, role: str) -> BadParameter:
    problem = (
        f"is no block for the role {role!r}; results of tools are the user's, calls and thinking "
        "are the assistant's. Put it into a message of its role."
    )
    return BadParameter(place, problem)


def _parts(blocks: Sequence[TextBlock]) -> list[TextPart]:
    return [TextPart(type="text", text=block.text) for block in blocks]
