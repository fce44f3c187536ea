"""OpenAI's client calls tools: whole and streamed, from a cold cache and from a warm one."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.runtime.server.scripted_server import ScriptedModel, scripted_serving
from tests.runtime.server.served_engine import MODEL, PAGE_SIZE, Server, write_checkpoint

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "description": "d", "parameters": SCHEMA}}
    for name in ("weather", "time")
]
TURNS: list[Any] = [{"role": "user", "content": "How is the weather in Bonn?"}]
ARGUMENTS = '{"city":"Bonn ☀"}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
NUM_TOKENS = len(CALL.encode())
OTHER = '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
Asked = dict[str, Any]
ASKED: Asked = {"model": MODEL, "messages": TURNS, "tools": TOOLS, "max_tokens": 400}
Told = tuple[str | None, list[tuple[str, str]], str]
"""Content, names and arguments of calls, and the reason of the end."""


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[Server, ScriptedModel]]:
    async with scripted_serving(write_checkpoint(tmp_path)) as served:
        yield served


async def whole(server: Server, **asked: Any) -> Told:
    answer = await server.client().chat.completions.create(**{**ASKED, **asked})
    [choice] = answer.choices
    calls = choice.message.tool_calls or []
    assert len({each.id for each in calls}) == len(calls)
    named = [(each.function.name, each.function.arguments) for each in calls]
    return choice.message.content, named, choice.finish_reason


async def streamed(server: Server, **asked: Any) -> Told:
    """What the deltas say when they are put together, each of which has its place."""
    stream = await server.client().chat.completions.create(**{**ASKED, **asked}, stream=True)
    content: list[str] = []
    names: list[str] = []
    arguments: list[list[str]] = []
    reasons = []
    roles = []
    async for chunk in stream:
        [choice] = chunk.choices
        roles.append(choice.delta.role)
        content.append(choice.delta.content or "")
        reasons.append(choice.finish_reason)
        for call in choice.delta.tool_calls or []:
            if call.id is not None:
                assert (call.index, call.type, call.function.arguments) == (
                    len(names),
                    "function",
                    "",
                )
                names.append(call.function.name)
                arguments.append([])
            else:
                assert (call.index, call.function.name) == (len(names) - 1, None)
                arguments[-1].append(call.function.arguments)
    assert [each for each in roles if each] == roles[:1]
    assert reasons[:-1] == [None] * (len(reasons) - 1)
    calls = [(name, "".join(own)) for name, own in zip(names, arguments, strict=True)]
    return "".join(content) or None, calls, reasons[-1]


@pytest.mark.parametrize(
    ("says", "asked", "told"),
    [
        (CALL, {}, (None, [("weather", ARGUMENTS)], "tool_calls")),
        (f"I look.\n{CALL}", {}, ("I look.", [("weather", ARGUMENTS)], "tool_calls")),
        (f"{CALL}\n{OTHER}", {}, (None, [("weather", ARGUMENTS), ("time", "{}")], "tool_calls")),
        (
            f"{CALL}\n{OTHER}",
            {"parallel_tool_calls": False},
            (None, [("weather", ARGUMENTS)], "tool_calls"),
        ),
        ("It is sunny.\n", {}, ("It is sunny.\n", [], "stop")),
        (CALL, {"tool_choice": "none"}, (CALL, [], "stop")),
        ("<tool_call>\nno\n</tool_call>", {}, ("<tool_call>\nno\n</tool_call>", [], "stop")),
        (CALL, {"max_tokens": CALL.index('"Bonn')}, (None, [("weather", '{"city":')], "length")),
        (CALL, {"max_tokens": NUM_TOKENS - 3}, (None, [("weather", ARGUMENTS)], "length")),
        (
            f"{CALL}\n{OTHER}",
            {"tool_choice": "required", "max_tokens": NUM_TOKENS + len("\n<tool")},
            (None, [("weather", ARGUMENTS)], "length"),
        ),
    ],
)
async def test_calls_are_told_whole_and_streamed_cold_and_warm(
    served: tuple[Server, ScriptedModel], says: str, asked: Asked, told: Told
) -> None:
    server, script = served
    script.say(says)

    assert await whole(server, **asked) == told
    await server.engine.settle()
    assert await streamed(server, **asked) == told
    await server.engine.flush()
    assert await streamed(server, **asked) == told
    await server.engine.settle()
    assert await whole(server, **asked) == told


async def test_a_call_that_breaks_off_is_content(served: tuple[Server, ScriptedModel]) -> None:
    server, script = served
    broken = '<tool_call>\n{"name": "weather", "arguments": {"city": Bonn}}\n</tool_call>'
    script.say(f"I look.\n{broken}")

    assert await whole(server) == (f"I look.{broken}", [], "stop")
    content, calls, reason = await streamed(server)
    # The stream had told the beginning before it could know.
    assert (content, reason) == (f"I look.{broken}", "stop")
    assert calls == [("weather", '{"city": ')]


@pytest.mark.parametrize("content", [None, "I look."])
async def test_the_next_turn_finds_the_pages_of_the_call(
    served: tuple[Server, ScriptedModel], content: str | None
) -> None:
    server, script = served
    create = server.client().chat.completions.create
    said = CALL if content is None else f"{content}\n{CALL}"
    script.say(said)
    first = await create(**ASKED, extra_body={"return_token_ids": True})
    await server.engine.settle()

    message = first.choices[0].message
    assert message.content == content
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "Sunny."}
    turns = [*TURNS, message.model_dump(exclude_none=True), result]
    script.say("It is sunny.")
    second = await create(**{**ASKED, "messages": turns})

    assert second.choices[0].message.content == "It is sunny."
    # The token that ended the first turn was never computed, nor is its page full.
    num_known = first.usage.prompt_tokens + first.usage.completion_tokens - 1
    assert second.usage.prompt_tokens_details.cached_tokens == num_known // PAGE_SIZE * PAGE_SIZE


async def test_samples_and_token_ids_are_told_beside_calls(
    served: tuple[Server, ScriptedModel],
) -> None:
    server, script = served
    script.say(CALL)
    ids = await server.llm.encode(f"{CALL}<|im_end|>")
    create = server.client().chat.completions.create
    asked = {**ASKED, "n": 2, "extra_body": {"return_token_ids": True}}
    answer = await create(**asked)
    usage = {"include_usage": True}
    chunks = [each async for each in await create(**asked, stream=True, stream_options=usage)]

    assert [each.token_ids for each in answer.choices] == [ids] * 2
    assert [len(each.message.tool_calls) for each in answer.choices] == [1, 1]
    told: dict[int, list[int]] = {0: [], 1: []}
    for chunk in chunks:
        for choice in chunk.choices:
            told[choice.index] += getattr(choice, "token_ids", None) or []
    assert told == {0: ids, 1: ids}
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens == 2 * len(ids)


async def test_the_template_is_given_the_tools(served: tuple[Server, ScriptedModel]) -> None:
    server, _ = served
    answer = await server.client().chat.completions.create(**ASKED)
    expected = await server.llm.apply_chat_template(TURNS, tools=TOOLS)
    assert answer.usage.prompt_tokens == len(expected)
    async with server.http() as http:
        tokens = await http.post("/tokenize", json={"messages": TURNS, "tools": TOOLS})
    assert tokens.json()["tokens"] == expected
    assert json.dumps(TOOLS[0]) in await server.llm.decode(expected)

    strict = [{**each, "function": {**each["function"], "strict": True}} for each in TOOLS]
    output = await server.direct({"messages": TURNS, "tools": strict}, max_tokens=1)
    assert output.prompt_token_ids == expected


@pytest.mark.parametrize(
    ("asked", "param", "words"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "Input should be 'function'"),
        ({"messages": [{"role": "user"}]}, "messages.0.content", "Field required"),
        (
            {"messages": [*TURNS, {"role": "assistant", "tool_calls": [{"id": "x"}]}]},
            "messages.1.tool_calls.0.function",
            "Field required",
        ),
    ],
)
async def test_what_is_not_served_is_refused_by_name(
    served: tuple[Server, ScriptedModel], asked: Asked, param: str, words: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await whole(served[0], **asked)
    assert caught.value.param == param
    assert words in str(caught.value)


async def test_a_format_is_needed_and_can_be_named(tmp_path: Path) -> None:
    plain = "{% for message in messages %}{{ message.content }}{% endfor %}"
    folder = write_checkpoint(tmp_path)
    async with scripted_serving(folder, plain) as (server, _):
        with pytest.raises(openai.BadRequestError, match="writes calls in none of"):
            await whole(server)
    async with scripted_serving(folder, plain, tool_format="hermes") as (server, script):
        script.say(CALL)
        assert await whole(server) == (None, [("weather", ARGUMENTS)], "tool_calls")
