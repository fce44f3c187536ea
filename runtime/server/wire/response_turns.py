"""The items of a request to `/v1/responses` as the turns of a conversation."""

from collections.abc import Sequence

from raydix.runtime.server.wire.messages import Message, TextPart
from raydix.runtime.server.wire.response_items import (
    AnyItem,
    InputCall,
    InputMessage,
    InputPart,
    InputReasoning,
    InputResult,
)
from raydix.runtime.server.wire.tools import EarlierCall, WrittenCall


def turns_of(items: Sequence[AnyItem]) -> list[Message]:
    """The turns: what the model reasons, says and calls in a row is one of them."""
    turns: list[Message] = []
    own: list[InputReasoning | InputMessage | InputCall] = []
    for item in items:
        is_own = not isinstance(item, InputResult) and not (
            isinstance(item, InputMessage) and item.role != "assistant"
        )
        if own and not (is_own and _goes_on(own[-1], item)):
            turns += _own_turn(own)
            own = []
        match item:
            case InputResult():
                turns.append(
                    Message(role="tool", tool_call_id=item.call_id, content=_content(item.output))
                )
            case InputMessage() if not is_own:
                turns.append(Message(role=item.role, content=_content(item.content)))
            case _:
                own.append(item)
    return [*turns, *_own_turn(own)]


def _goes_on(last: AnyItem, item: AnyItem) -> bool:
    """Whether an item of the model's belongs to the turn that ends with `last`."""
    match item:
        case InputCall():
            return True
        case InputMessage():
            return isinstance(last, InputReasoning)
        case _:
            return False


def _own_turn(items: Sequence[InputReasoning | InputMessage | InputCall]) -> list[Message]:
    """A turn of the model; none if it has said nothing."""
    reasoning, content, calls = "", None, []
    for item in items:
        match item:
            case InputReasoning():
                reasoning = "\n".join(part.text for part in item.content or ())
            case InputMessage():
                content = _content(item.content)
            case InputCall():
                written = WrittenCall(name=item.name, arguments=item.arguments)
                calls.append(EarlierCall(id=item.call_id, function=written))
    if content is None and not calls:
        return []
    return [
        Message(
            role="assistant",
            content=content,
            reasoning_content=reasoning or None,
            tool_calls=calls,
        )
    ]


def _content(content: str | list[InputPart]) -> str | list[TextPart]:
    if isinstance(content, str):
        return content
    return [TextPart(type="text", text=part.text) for part in content]
