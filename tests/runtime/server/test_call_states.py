"""Calls and JSON are the same wherever the pages of their prompt are, after a restart, too."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("xgrammar")

from tests.runtime.server.served_engine import MODEL, Server, serving, write_checkpoint
from tests.runtime.server.test_cache_states import State, bring_to
from tests.runtime.server.test_messages import client as anthropic_client

CITIES = ["Bonn", "Rome", "Split"]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": CITIES}},
    "required": ["city"],
    "additionalProperties": False,
}
TURNS: list[Any] = [{"role": "user", "content": "In which city is it raining now? " * 3}]
ASKED: dict[str, Any] = {
    "model": MODEL,
    "messages": TURNS,
    "max_tokens": 200,
    "extra_body": {"temperature": 0},
}
TOOLS = [{"type": "function", "function": {"name": "rain", "parameters": SCHEMA}}]
CALLING: dict[str, Any] = {
    **ASKED,
    "tools": TOOLS,
    "tool_choice": "required",
    "parallel_tool_calls": False,
}
MESSAGE: dict[str, Any] = {
    **ASKED,
    "tools": [{"name": "rain", "input_schema": SCHEMA}],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
Told = tuple[Any, int]
"""The arguments or the JSON, and how many tokens of the prompt were cached."""


async def call_whole(server: Server) -> Told:
    answer = await server.client().chat.completions.create(**CALLING)
    [call] = answer.choices[0].message.tool_calls
    assert call.function.name == "rain"
    cached = answer.usage.prompt_tokens_details.cached_tokens
    return json.loads(call.function.arguments), cached


async def call_streamed(server: Server) -> Told:
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    stream = await server.client().chat.completions.create(**CALLING, **usage)
    chunks = [each async for each in stream]
    deltas = [each for chunk in chunks for choice in chunk.choices for each in told(choice)]
    cached = chunks[-1].usage.prompt_tokens_details.cached_tokens
    return json.loads("".join(each.function.arguments for each in deltas)), cached


def told(choice: Any) -> list[Any]:
    return choice.delta.tool_calls or []


async def message_whole(server: Server) -> Told:
    message = await anthropic_client(server).messages.create(**MESSAGE)
    [block] = message.content
    return block.input, message.usage.cache_read_input_tokens or 0


async def message_streamed(server: Server) -> Told:
    async with anthropic_client(server).messages.stream(**MESSAGE) as stream:
        message = await stream.get_final_message()
    [block] = message.content
    return block.input, message.usage.cache_read_input_tokens or 0


async def structured(server: Server) -> Told:
    answer = await server.client().chat.completions.create(**ASKED, response_format=FORMAT)
    cached = answer.usage.prompt_tokens_details.cached_tokens
    return json.loads(answer.choices[0].message.content), cached


WAYS: list[Callable[[Server], Awaitable[Told]]] = [
    *(call_whole, call_streamed, message_whole, message_streamed, structured),
]


@asynccontextmanager
async def engine(folder: Path) -> AsyncIterator[Server]:
    cache = {
        "load": "always",
        "l1": {"num_pages": 256},
        "l2": {"bytes_per_node": "16MiB"},
        "l3": {"backend": "file", "path": str(folder / "l3"), "max_bytes": "64MiB"},
        "prefetch": {"strategy": "wait_complete", "min_tokens": 1},
    }
    model = {"max_model_len": 1024, "tool_format": "hermes"}
    async with serving(folder / "model", model=model, cache=cache) as server:
        # The first grammar starts the compilers: no client waits for that.
        await server.direct("Say a.", structured_outputs={"choice": ["a"]}, max_tokens=4)
        yield server
        await server.engine.check()


@pytest.mark.slow
async def test_calls_are_the_same_in_every_cache_state_and_after_a_restart(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    write_checkpoint(tmp_path / "model")
    expected = {}
    async with engine(tmp_path) as server:
        for way in WAYS:
            expected[way], _ = await way(server)
            assert expected[way]["city"] in CITIES
        for state in State:
            for way in WAYS:
                await bring_to(server.engine, state)
                answer, num_cached = await way(server)
                assert answer == expected[way], (state, way)
                assert (num_cached > 0) is (state is not State.COLD), (state, way)
        await server.engine.settle()

    async with engine(tmp_path) as server:
        for way in WAYS:
            answer, num_cached = await way(server)
            assert answer == expected[way], way
            assert num_cached > 0, way
            await bring_to(server.engine, State.L3)
