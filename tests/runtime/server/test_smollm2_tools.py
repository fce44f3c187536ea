"""A real model, SmolLM2-135M-Instruct, with three tools: whatever it must call is a valid call.

Its template knows no tools, so they stand in the system's turn.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import jsonschema
import pytest

from raydix.errors import ConfigError
from raydix.runtime.cli.demo_smollm2 import smollm2_checkpoint
from tests.runtime.server.served_engine import MODEL, Server, serving

pytestmark = [pytest.mark.slow, pytest.mark.part]


def tool(name: str, **properties: Any) -> dict[str, Any]:
    """A function, and what it takes."""
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": schema}}


CITY = {"type": "string", "maxLength": 30}
TOOLS: list[Any] = [
    tool("get_weather", city=CITY),
    tool("get_time", city=CITY),
    tool("add", a={"type": "integer"}, b={"type": "integer"}),
]
SCHEMAS = {each["function"]["name"]: each["function"]["parameters"] for each in TOOLS}
SYSTEM = (
    'To call a function, answer <tool_call>\n{"name": NAME, "arguments": {...}}\n</tool_call>.\n'
    + "\n".join(json.dumps(each["function"]) for each in TOOLS)
)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    try:
        folder = smollm2_checkpoint()
    except ConfigError as error:
        pytest.skip(str(error))
    model = {"max_model_len": 1024, "tool_format": "hermes"}
    cache = {"l1": {"num_pages": 256}}
    async with serving(folder, model=model, cache=cache) as server:
        yield server


async def test_what_a_real_model_must_call_is_valid_whole_and_streamed(server: Server) -> None:
    create = server.client().chat.completions.create
    for question, expected in [
        ("What is the weather in Paris?", ("get_weather", {"city": "Paris"})),
        ("How much is 2 plus 3?", None),
    ]:
        turns = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
        asked: Any = {
            "model": MODEL,
            "messages": turns,
            "tools": TOOLS,
            "tool_choice": "required",
            "parallel_tool_calls": False,
            "temperature": 0,
            "max_tokens": 100,
        }
        [choice] = (await create(**asked)).choices
        [call] = choice.message.tool_calls
        called = call.function.name, json.loads(call.function.arguments)
        jsonschema.validate(called[1], SCHEMAS[called[0]])
        assert choice.finish_reason == "tool_calls"
        assert expected in (None, called)

        deltas = [
            each.function
            async for chunk in await create(**asked, stream=True)
            for each in chunk.choices[0].delta.tool_calls or []
        ]
        assert deltas[0].name == called[0]
        assert "".join(each.arguments for each in deltas) == call.function.arguments
