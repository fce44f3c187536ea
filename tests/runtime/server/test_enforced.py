"""Responses and Anthropic's messages enforce what they demand: forms, and calls of tools."""

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import jsonschema
import openai
import pytest
import pytest_asyncio

from tests.runtime.server.served_engine import MODEL, Server, serving, write_checkpoint
from tests.runtime.server.test_messages import client

pytestmark = pytest.mark.asyncio(loop_scope="module")
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Rex", "Mia"]}, "is_old": {"type": "boolean"}},
    "required": ["name", "is_old"],
    "additionalProperties": False,
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
RESPONSES: dict[str, Any] = {
    "model": MODEL,
    "input": "Which pet?",
    "max_output_tokens": 200,
    "store": False,
    "tools": [
        {"type": "function", "name": "pet", "parameters": SCHEMA, "strict": True},
        {"type": "function", "name": "now", "parameters": NOTHING},
    ],
}
MESSAGES: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Which pet?"}],
    "max_tokens": 200,
    "tools": [
        {"name": "pet", "input_schema": SCHEMA},
        {"name": "now", "input_schema": NOTHING},
    ],
}
ONE_CALL = {"disable_parallel_tool_use": True}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    """One for all, as its compilers take seconds to start."""
    folder = write_checkpoint(tmp_path_factory.mktemp("enforced"))
    model = {"max_model_len": 1024, "tool_format": "hermes"}
    async with serving(folder, model=model, cache={"l1": {"num_pages": 256}}) as server:
        yield server


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"pet", "now"}),
        ({"type": "function", "name": "pet"}, {"pet"}),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "now"}],
            },
            {"now"},
        ),
    ],
)
async def test_a_response_calls_what_it_must(server: Server, choice: Any, names: set[str]) -> None:
    create = server.client().responses.create
    answer = await create(**RESPONSES, tool_choice=choice, parallel_tool_calls=False)
    [call] = answer.output
    assert (call.type, call.status) == ("function_call", "completed")
    assert call.name in names
    if call.name == "pet":
        jsonschema.validate(json.loads(call.arguments), SCHEMA)


async def test_a_response_has_the_form_of_its_text(server: Server) -> None:
    form = {"type": "json_schema", "name": "pet", "schema": SCHEMA, "strict": True}
    asked: Any = {**RESPONSES, "tools": [], "text": {"format": form}}
    whole = await server.client().responses.create(**asked)
    jsonschema.validate(json.loads(whole.output_text), SCHEMA)
    assert whole.text.format.name == "pet"

    async with server.client().responses.stream(**asked) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_response()
    jsonschema.validate(json.loads(final.output_text), SCHEMA)


@pytest.mark.parametrize(
    ("choice", "names"),
    [({"type": "any"}, {"pet", "now"}), ({"type": "tool", "name": "pet"}, {"pet"})],
)
async def test_a_message_calls_what_it_must(server: Server, choice: Any, names: set[str]) -> None:
    answer = await client(server).messages.create(**MESSAGES, tool_choice={**choice, **ONE_CALL})
    [block] = answer.content
    assert (block.type, answer.stop_reason) == ("tool_use", "tool_use")
    assert block.name in names
    if block.name == "pet":
        jsonschema.validate(block.input, SCHEMA)


async def test_a_message_has_the_form_of_its_output(server: Server) -> None:
    config: Any = {"format": {"type": "json_schema", "schema": SCHEMA}}
    asked = {**MESSAGES, "tools": [], "output_config": config}
    answer = await client(server).messages.create(**asked)
    [block] = answer.content
    jsonschema.validate(json.loads(block.text), SCHEMA)


async def test_what_cannot_be_enforced_is_refused_by_the_fields_own_name(server: Server) -> None:
    form: Any = {"type": "json_schema", "name": "x", "schema": {"not": {}}}
    with pytest.raises(openai.BadRequestError) as caught:
        await server.client().responses.create(
            **{**RESPONSES, "tools": [], "text": {"format": form}}
        )
    assert caught.value.param == "text.format"
    assert "'not' is not enforced" in str(caught.value)

    form = {"type": "json_schema", "schema": {"not": {}}}
    with pytest.raises(anthropic.BadRequestError, match=r"output_config\.format.* is not enforced"):
        await client(server).messages.create(
            **{**MESSAGES, "tools": [], "output_config": {"format": form}}
        )
    choice: Any = {"type": "tool", "name": "x"}
    with pytest.raises(anthropic.BadRequestError, match="tool_choice wants a tool that is not"):
        await client(server).messages.create(**MESSAGES, tool_choice=choice)
