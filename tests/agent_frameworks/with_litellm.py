"""An agent's loop by litellm, over chats and over Anthropic's messages."""

import json
from typing import Any

import litellm
import pytest

from tests.agent_frameworks.agent_server import ANSWER, MODEL, QUESTION, time_in, weather_in

FUNCTIONS = {each.__name__: each for each in (weather_in, time_in)}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "d", "parameters": SCHEMA}}
    for name in FUNCTIONS
]


async def answer_of(asked: dict[str, Any], *, stream: bool) -> Any:
    """The message of one turn."""
    answer = await litellm.acompletion(**asked, stream=stream)
    if stream:
        chunks = [chunk async for chunk in answer]
        assert len(chunks) > 2
        answer = litellm.stream_chunk_builder(chunks, messages=asked["messages"])
    return answer.choices[0].message


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("interface", ["openai", "anthropic"])
async def test_an_agent_ends_with_what_its_tools_answered(
    url: str, interface: str, stream: bool
) -> None:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    asked = {
        "model": f"{interface}/{MODEL}",
        "api_base": f"{url}/v1" if interface == "openai" else url,
        "api_key": "none",
        "messages": messages,
        "tools": TOOLS,
        "max_tokens": 400,
        "num_retries": 0,
    }
    message = await answer_of(asked, stream=stream)
    while message.tool_calls:
        messages.append(message)
        for call in message.tool_calls:
            result = FUNCTIONS[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        message = await answer_of(asked, stream=stream)
    assert message.content == ANSWER
    assert [each["role"] for each in messages] == ["user", *["assistant", "tool"] * 2]
