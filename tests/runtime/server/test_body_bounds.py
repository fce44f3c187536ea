"""Bodies are bounded before they are looked at, and so is what is told of wrong ones."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from raydix.errors import BadParameter
from raydix.runtime.server.wire.anthropic import MessagesRequest
from raydix.runtime.server.wire.base import MAX_TOOLS, MAX_TURNS
from raydix.runtime.server.wire.chat import ChatRequest
from raydix.runtime.server.wire.completions import CompletionRequest
from raydix.runtime.server.wire.responses import ResponsesRequest
from raydix.runtime.server.wire.tools import Tool, ToolMode, chosen_tools

TURN = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt": [1.5] * 3000},
        {"prompt": [[1.5]] * 1000},
        {"prompt": [[1.5] * 3000]},
        {"prompt": "a", "stop": [1] * 60},
        {"prompt": "a", "stop_token_ids": ["1"] * 1000},
        {"prompt": "a", "logit_bias": {str(i): "x" for i in range(3000)}},
        {"prompt": "a", "metadata": {str(i): i for i in range(3000)}},
        {"prompt": "a", **{f"unknown{i}": 0 for i in range(3000)}},
    ],
)
def test_errors_do_not_grow_with_what_is_wrong(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as raised:
        CompletionRequest.model_validate(wrong)
    assert raised.value.error_count() < 6


def test_of_many_wrong_turns_the_first_is_told() -> None:
    with pytest.raises(ValidationError) as raised:
        ChatRequest.model_validate({"messages": [{"role": "user", "content": [{}] * 5}] * 3000})
    assert {each["loc"][1] for each in raised.value.errors()} == {0}
    assert raised.value.error_count() < 6

    with pytest.raises(ValidationError) as raised:
        ResponsesRequest.model_validate({"input": [{}] * 3000})
    assert raised.value.error_count() < 6


@pytest.mark.parametrize(
    ("kind", "fields", "wrong"),
    [
        (ChatRequest, {"messages": [TURN]}, {"modalities": ["x"] * 3000}),
        (ChatRequest, {"messages": [TURN]}, {"modalities": ["text"] * 17}),
        (ResponsesRequest, {"input": "a"}, {"include": ["reasoning.encrypted_content"] * 17}),
        (MessagesRequest, {"messages": [TURN], "max_tokens": 1}, {"stop_sequences": ["a"] * 65}),
    ],
)
def test_lists_of_words_are_short(
    kind: type[BaseModel], fields: dict[str, Any], wrong: dict[str, Any]
) -> None:
    kind.model_validate(fields)
    with pytest.raises(ValidationError) as raised:
        kind.model_validate(fields | wrong)
    assert raised.value.error_count() == 1


# Nothing of these is right, which nobody has seen.
WRONG: list[Any] = [{"type": 5}] * (MAX_TURNS + 1)
BLOCKS = [{"type": "tool_result", "tool_use_id": "a", "content": WRONG[1:]}]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (ChatRequest, {"messages": [{"role": "assistant", "tool_calls": WRONG}]}),
        (ChatRequest, {"messages": [{"content": WRONG[9:], "tool_calls": WRONG[-9:]}]}),
        (ResponsesRequest, {"input": [{"type": "function_call_output", "output": WRONG}]}),
        (ResponsesRequest, {"input": [{"type": "reasoning", "summary": WRONG}]}),
        (ResponsesRequest, {"input": [{"type": "reasoning", "content": WRONG}]}),
        (MessagesRequest, {"messages": [{"role": "user", "content": BLOCKS}], "max_tokens": 1}),
    ],
)
def test_all_parts_of_a_conversation_are_counted(
    kind: type[BaseModel], body: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError, match=f"It has {MAX_TURNS + 1} parts; expected at most"):
        kind.model_validate(body)


FUNCTION = {"type": "function", "name": "f"}
ALLOWED = {"type": "allowed_tools", "mode": "auto"}


@pytest.mark.parametrize(
    ("kind", "body", "field", "tool"),
    [
        (
            ChatRequest,
            {"messages": [TURN]},
            "tools",
            {"type": "function", "function": {"name": "f"}},
        ),
        (ResponsesRequest, {"input": "a"}, "tools", FUNCTION),
        (
            MessagesRequest,
            {"messages": [TURN], "max_tokens": 1},
            "tools",
            {"name": "f", "input_schema": {}},
        ),
        (ResponsesRequest, {"input": "a"}, "tool_choice", FUNCTION),
    ],
)
def test_tools_are_bounded(
    kind: type[BaseModel], body: dict[str, Any], field: str, tool: dict[str, Any]
) -> None:
    def asked(number: int) -> dict[str, Any]:
        tools = [tool] * number
        return {**body, field: {**ALLOWED, "tools": tools} if field == "tool_choice" else tools}

    kind.model_validate(asked(MAX_TOOLS))
    with pytest.raises(ValidationError, match=f"at most {MAX_TOOLS} items"):
        kind.model_validate(asked(MAX_TOOLS + 1))


def test_tools_that_a_chat_allows_are_bounded() -> None:
    tools = [Tool.model_validate({"type": "function", "function": {"name": "f"}})]

    def choice(number: int) -> dict[str, Any]:
        allowed = {"mode": "auto", "tools": [FUNCTION] * number}
        return {"type": "allowed_tools", "allowed_tools": allowed}

    assert chosen_tools(tools, choice(MAX_TOOLS)) == (ToolMode.AUTO, frozenset({"f"}))
    with pytest.raises(BadParameter, match=f"some of the tools, at most {MAX_TOOLS}"):
        chosen_tools(tools, choice(MAX_TOOLS + 1))
