"""OpenAI's client calls functions and reads reasoning by `/v1/responses`, whole and streamed."""

import asyncio
from typing import Any

import openai
import pytest

from tests.runtime.server.scripted_server import (
    ScriptedModel,
)
from tests.runtime.server.served_engine import MODEL, PAGE_SIZE, Server
from tests.runtime.server.test_tools import ARGUMENTS, CALL, OTHER, SCHEMA, TOOLS

QUESTION = "How is the weather in Bonn?"
FLAT: list[Any] = [
    {"type": "function", "name": name, "description": "d", "parameters": SCHEMA}
    for name in ("weather", "time")
]
ASKED: dict[str, Any] = {
    "model": MODEL,
    "input": QUESTION,
    "tools": FLAT,
    "max_output_tokens": 400,
    "store": False,
}
HM = "<think>\nHm ☀.\n</think>\n\n"
REASONED = ("reasoning", "Hm ☀.", "completed")
CALLED = ("function_call", f"weather {ARGUMENTS}", "completed")
Told = tuple[list[tuple[str, str, str]], str]
"""Each item's type, text and status, and the status of the response."""


def told(response: Any) -> Told:
    items = []
    for item in response.output:
        match item.type:
            case "function_call":
                assert item.call_id.startswith("call_")
                text = f"{item.name} {item.arguments}"
            case "reasoning":
                [part] = item.content
                text = part.text
            case _:
                [part] = item.content
                text = part.text
        items.append((item.type, text, item.status))
    assert len({item.id for item in response.output}) == len(response.output)
    return items, response.status


async def whole(server: Server, **asked: Any) -> Told:
    return told(await server.client().responses.create(**{**ASKED, **asked}))


async def whole_by_the_synchronous_client(server: Server, **asked: Any) -> Told:
    create = server.sync_client().responses.create
    return told(await asyncio.to_thread(lambda: create(**{**ASKED, **asked})))


async def streamed(server: Server, **asked: Any) -> Told:
    """What the client's own accumulation of events says, and the last event, which is the same."""
    async with server.client().responses.stream(**{**ASKED, **asked}) as stream:
        events = [event async for event in stream]
        last: Any = events[-1]
        assert last.type == f"response.{last.response.status}"
        if last.response.status == "completed":
            assert told(await stream.get_final_response()) == told(last.response)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return told(last.response)


@pytest.mark.parametrize(
    ("says", "asked", "items", "status"),
    [
        (CALL, {}, [CALLED], "completed"),
        (
            f"{HM}I look.\n{CALL}\n{OTHER}",
            {},
            [
                REASONED,
                ("message", "I look.", "completed"),
                CALLED,
                ("function_call", "time {}", "completed"),
            ],
            "completed",
        ),
        (f"{CALL}\n{OTHER}", {"parallel_tool_calls": False}, [CALLED], "completed"),
        (
            f"{HM}It is sunny.",
            {"tools": []},
            [REASONED, ("message", "It is sunny.", "completed")],
            "completed",
        ),
        ("", {}, [("message", "", "completed")], "completed"),
        (CALL, {"tool_choice": "none"}, [("message", CALL, "completed")], "completed"),
        (
            "<think>\nHm and",
            {"max_output_tokens": 12},
            [("reasoning", "Hm a", "incomplete")],
            "incomplete",
        ),
        (
            CALL,
            {"max_output_tokens": CALL.index('"Bonn')},
            [("function_call", 'weather {"city":', "incomplete")],
            "incomplete",
        ),
    ],
)
async def test_items_are_told_whole_and_streamed_cold_and_warm(
    served: tuple[Server, ScriptedModel],
    says: str,
    asked: dict[str, Any],
    items: list[tuple[str, str, str]],
    status: str,
) -> None:
    server, script = served
    script.say(says)

    assert await whole(server, **asked) == (items, status)
    await server.engine.settle()
    assert await streamed(server, **asked) == (items, status)
    assert await whole_by_the_synchronous_client(server, **asked) == (items, status)
    await server.engine.flush()
    assert await streamed(server, **asked) == (items, status)


async def test_events_come_in_openais_order(served: tuple[Server, ScriptedModel]) -> None:
    server, script = served
    script.say(f"{HM}Look.\n{CALL}")
    events = [each async for each in await server.client().responses.create(**ASKED, stream=True)]
    kinds = [event.type.removeprefix("response.") for event in events]
    in_order = [kind for kind, last in zip(kinds, [None, *kinds], strict=False) if kind != last]
    text = ["output_item.added", "content_part.added"]
    done = ["content_part.done", "output_item.done"]
    assert in_order == [
        *("created", "in_progress"),
        *(*text, "reasoning_text.delta", "reasoning_text.done", *done),
        *(*text, "output_text.delta", "output_text.done", *done),
        "output_item.added",
        *("function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    places = [event.output_index for event in events if hasattr(event, "output_index")]
    assert places == sorted(places)
    assert set(places) == {0, 1, 2}


async def test_a_call_that_breaks_off_is_text(served: tuple[Server, ScriptedModel]) -> None:
    server, script = served
    broken = '<tool_call>\n{"name": "weather", "arguments": {"city": Bonn}}\n</tool_call>'
    script.say(broken)
    assert await whole(server) == ([("message", broken, "completed")], "completed")
    events = [each async for each in await server.client().responses.create(**ASKED, stream=True)]
    done: list[Any] = [each for each in events if each.type == "response.output_item.done"]
    assert [(each.item.type, each.item.status) for each in done] == [
        ("function_call", "incomplete"),
        ("message", "completed"),
    ]
    assert told(events[-1].response) == ([("message", broken, "completed")], "completed")


async def test_the_next_turn_finds_the_pages_of_the_call(
    served: tuple[Server, ScriptedModel],
) -> None:
    server, script = served
    create = server.client().responses.create
    script.say(f"{HM}I look.\n{CALL}")
    first = await create(**ASKED)
    await server.engine.settle()
    assert first.usage.output_tokens_details.reasoning_tokens > 0

    items = [item.model_dump(exclude_none=True) for item in first.output]
    call: Any = first.output[-1]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}
    script.say("It is sunny.")
    turns: Any = [{"role": "user", "content": QUESTION}, *items, result]
    second = await create(**{**ASKED, "input": turns})

    assert second.output_text == "It is sunny."
    num_known = first.usage.input_tokens + first.usage.output_tokens - 1
    num_cached = second.usage.input_tokens_details.cached_tokens
    assert num_cached == num_known // PAGE_SIZE * PAGE_SIZE


async def test_the_prompt_is_that_of_a_chat(served: tuple[Server, ScriptedModel]) -> None:
    server, script = served
    script.say("a")
    turns: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": QUESTION},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Hm.\nSo.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "time", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "Noon."},
    ]
    async with server.http() as http:
        asked = {"messages": turns, "tools": TOOLS, "reasoning_effort": "high"}
        expected = (await http.post("/tokenize", json=asked)).json()["count"]
    items: Any = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": QUESTION}]},
        {
            "type": "reasoning",
            "id": "r",
            "summary": [{"type": "summary_text", "text": "s"}],
            "content": [
                {"type": "reasoning_text", "text": "Hm."},
                {"type": "reasoning_text", "text": "So."},
            ],
        },
        {"role": "assistant", "content": "I look."},
        {"type": "function_call", "call_id": "c1", "name": "time", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "Noon."},
    ]
    answer = await server.client().responses.create(
        **{**ASKED, "input": items, "instructions": "Be brief."},
        reasoning={"effort": "high", "summary": "auto"},
        include=["reasoning.encrypted_content"],
    )
    assert answer.usage.input_tokens == expected
    assert answer.tools[0].name == "weather"
    assert answer.reasoning.effort == "high"


@pytest.mark.parametrize(
    ("asked", "param", "words"),
    [
        ({"input": [{"type": "image"}]}, "input.0", "of type 'message', 'function_call'"),
        ({"input": [{"type": 5}]}, "input.0", "of type 'message', 'function_call'"),
        ({"input": [5]}, "input.0", "Input should be an object"),
        ({"input": [{"role": "user"}]}, "input.0.content", "Field required"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input.0.call_id", "Field required"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "'function' (it is 'web_search')"),
        ({"tools": [{"type": "function"}]}, "tools.0.name", "Field required"),
        ({"include": ["file_search_call.results"]}, "include.0", "reasoning.encrypted_content"),
        ({"store": True}, "store", "Input should be False"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(
    served: tuple[Server, ScriptedModel], asked: dict[str, Any], param: str, words: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await whole(served[0], **asked)
    assert caught.value.param == param
    assert words in str(caught.value)
