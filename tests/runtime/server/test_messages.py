"""Anthropic's client, with and without a loop: whole and streamed, cold and warm."""

import asyncio
import json
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest

from tests.runtime.server.scripted_server import (
    OPENING_TEMPLATE,
    ScriptedModel,
    scripted_serving,
)
from tests.runtime.server.served_engine import MODEL, PAGE_SIZE, Server, write_checkpoint
from tests.runtime.server.test_tools import ARGUMENTS, CALL, OTHER, SCHEMA, TOOLS

QUESTION = "How is the weather in Bonn?"
TURNS: list[Any] = [{"role": "user", "content": QUESTION}]
OWN_TOOLS: list[Any] = [
    {"name": name, "description": "d", "input_schema": SCHEMA} for name in ("weather", "time")
]
ASKED: dict[str, Any] = {
    "model": MODEL,
    "messages": TURNS,
    "tools": OWN_TOOLS,
    "max_tokens": 400,
}
HM = "<think>\nHm ☀.\n</think>\n\n"
BONN = json.loads(ARGUMENTS)
REASONED: dict[str, Any] = {"type": "thinking", "thinking": "Hm ☀.", "signature": ""}
Told = tuple[list[dict[str, Any]], str, str | None]
"""The blocks without ids, the reason of the end, and the stop sequence."""


def client(server: Server) -> anthropic.AsyncAnthropic:
    """Anthropic's own client; it never tries again, so that every error is seen."""
    http = httpx2.AsyncClient(verify=False, timeout=60)
    return anthropic.AsyncAnthropic(
        base_url=server.url, api_key="none", max_retries=0, http_client=http
    )


def sync_client(server: Server) -> anthropic.Anthropic:
    """The same without a loop; its calls need a thread of their own."""
    http = httpx2.Client(verify=False, timeout=60)
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, http_client=http)


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def call(name: str, arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "name": name, "input": arguments}


def told(message: Any) -> Told:
    assert (message.type, message.role, message.model) == ("message", "assistant", MODEL)
    blocks = [each.model_dump(exclude_none=True) for each in message.content]
    ids = [block.pop("id") for block in blocks if block["type"] == "tool_use"]
    assert len(set(ids)) == len(ids)
    return blocks, message.stop_reason, message.stop_sequence


async def whole(server: Server, **asked: Any) -> Told:
    return told(await client(server).messages.create(**{**ASKED, **asked}))


async def whole_without_a_loop(server: Server, **asked: Any) -> Told:
    create = sync_client(server).messages.create
    return told(await asyncio.to_thread(lambda: create(**{**ASKED, **asked})))


async def streamed(server: Server, **asked: Any) -> Told:
    """What the client puts together, as its events allow."""
    async with client(server).messages.stream(**{**ASKED, **asked}) as stream:
        async for _ in stream:
            pass
        return told(await stream.get_final_message())


async def streamed_without_a_loop(server: Server, **asked: Any) -> Told:
    def ask() -> Told:
        with sync_client(server).messages.stream(**{**ASKED, **asked}) as stream:
            return told(stream.get_final_message())

    return await asyncio.to_thread(ask)


@pytest.mark.parametrize(
    ("says", "asked", "blocks", "end"),
    [
        ("It is sunny.", {}, [text("It is sunny.")], ("end_turn", None)),
        (CALL, {}, [call("weather", BONN)], ("tool_use", None)),
        (
            f"{HM}I look.\n{CALL}\n{OTHER}",
            {},
            [REASONED, text("I look."), call("weather", BONN), call("time", {})],
            ("tool_use", None),
        ),
        (
            f"{CALL}\n{OTHER}",
            {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
            [call("weather", BONN)],
            ("tool_use", None),
        ),
        (f"{HM}a", {"thinking": {"type": "adaptive"}}, [REASONED, text("a")], ("end_turn", None)),
        (
            f"{HM}a",
            {"thinking": {"type": "adaptive", "display": "omitted"}},
            [text("a")],
            ("end_turn", None),
        ),
        ("a, b", {"stop_sequences": [","]}, [text("a")], ("stop_sequence", ",")),
        ("abc", {"max_tokens": 2}, [text("ab")], ("max_tokens", None)),
        ("", {}, [], ("end_turn", None)),
        (CALL, {"tool_choice": {"type": "none"}}, [text(CALL)], ("end_turn", None)),
        (
            CALL,
            {"max_tokens": CALL.index("nn ☀")},
            [call("weather", {})],
            ("max_tokens", None),
        ),
    ],
)
async def test_blocks_are_told_whole_and_streamed_cold_and_warm(
    served: tuple[Server, ScriptedModel],
    says: str,
    asked: dict[str, Any],
    blocks: list[dict[str, Any]],
    end: tuple[str, str | None],
) -> None:
    server, script = served
    script.say(says)

    assert await whole(server, **asked) == (blocks, *end)
    await server.engine.settle()
    assert await streamed(server, **asked) == (blocks, *end)
    assert await whole_without_a_loop(server, **asked) == (blocks, *end)
    await server.engine.flush()
    assert await streamed_without_a_loop(server, **asked) == (blocks, *end)


async def test_events_come_in_anthropics_order(served: tuple[Server, ScriptedModel]) -> None:
    server, script = served
    script.say(f"{HM}Look.\n{CALL}")
    stream = await client(server).messages.create(**ASKED, stream=True)
    events: list[Any] = [each async for each in stream]
    kinds = [
        f"{event.type} {event.delta.type}" if event.type == "content_block_delta" else event.type
        for event in events
    ]
    in_order = [kind for kind, last in zip(kinds, [None, *kinds], strict=False) if kind != last]
    assert in_order == [
        "message_start",
        *("content_block_start", "content_block_delta thinking_delta"),
        *("content_block_delta signature_delta", "content_block_stop"),
        *("content_block_start", "content_block_delta text_delta", "content_block_stop"),
        *("content_block_start", "content_block_delta input_json_delta", "content_block_stop"),
        *("message_delta", "message_stop"),
    ]
    places = [event.index for event in events if event.type.startswith("content_block")]
    assert places == sorted(places)
    assert set(places) == {0, 1, 2}
    begin, end = events[0].message.usage, events[-2].usage
    assert begin.input_tokens == end.input_tokens
    assert 0 < begin.output_tokens < end.output_tokens


async def test_a_call_that_breaks_off_is_text(served: tuple[Server, ScriptedModel]) -> None:
    server, script = served
    broken = '<tool_call>\n{"name": "weather", "arguments": {"city": Bonn}}\n</tool_call>'
    script.say(broken)
    assert await whole(server) == ([text(broken)], "end_turn", None)
    blocks, reason, _ = await streamed(server)
    assert (blocks[-1], reason) == (text(broken), "end_turn")

    unreadable = CALL.replace("Bonn ☀", "\\ud83d")
    script.say(unreadable)
    assert await whole(server) == ([text('{"city":"\\ud83d"}')], "tool_use", None)


async def test_usage_tells_what_the_cache_had_and_has_now(
    served: tuple[Server, ScriptedModel],
) -> None:
    server, script = served
    script.say("a")
    create = client(server).messages.create
    counted = await client(server).messages.count_tokens(
        model=MODEL, messages=TURNS, tools=OWN_TOOLS
    )
    num_pages, rest = divmod(counted.input_tokens - 1, PAGE_SIZE)
    cold = (await create(**ASKED)).usage
    await server.engine.settle()
    warm = (await create(**ASKED)).usage

    kept = num_pages * PAGE_SIZE
    assert (cold.cache_read_input_tokens, cold.cache_creation_input_tokens) == (0, kept)
    assert (warm.cache_read_input_tokens, warm.cache_creation_input_tokens) == (kept, 0)
    assert cold.input_tokens == warm.input_tokens == rest + 1


async def test_an_agent_goes_on_with_the_pages_of_its_turns(
    served: tuple[Server, ScriptedModel],
) -> None:
    server, script = served
    create = client(server).messages.create
    script.say(f"{HM}I look.\n{CALL.replace(ARGUMENTS, json.dumps(BONN, ensure_ascii=False))}")
    first = await create(**ASKED)
    await server.engine.settle()

    result = {"type": "tool_result", "tool_use_id": first.content[-1].id, "content": "Sunny."}
    turns: Any = [
        *TURNS,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    script.say("It is sunny.")
    second = await create(**{**ASKED, "messages": turns})
    assert told(second) == ([text("It is sunny.")], "end_turn", None)
    used = first.usage
    num_known = used.input_tokens + used.cache_creation_input_tokens + used.output_tokens - 1
    assert second.usage.cache_read_input_tokens == num_known // PAGE_SIZE * PAGE_SIZE


async def test_a_last_turn_of_the_model_is_gone_on_with(
    served: tuple[Server, ScriptedModel],
) -> None:
    server, script = served
    script.say(" sunny.")
    turns: Any = [*TURNS, {"role": "assistant", "content": "It is"}]
    assert await whole(server, messages=turns) == ([text(" sunny.")], "end_turn", None)
    ids = await server.llm.apply_chat_template(turns, tools=TOOLS, continue_final_message=True)
    counted = await client(server).messages.count_tokens(
        model=MODEL, messages=turns, tools=OWN_TOOLS
    )
    assert counted.input_tokens == len(ids)


async def test_thinking_is_the_switch_of_the_template(tmp_path: Path) -> None:
    async with scripted_serving(write_checkpoint(tmp_path), OPENING_TEMPLATE) as (server, script):
        script.say("Hm.\n</think>\n\na")
        thought = {"type": "thinking", "thinking": "Hm.", "signature": ""}
        thinking = {"type": "enabled", "budget_tokens": 1024}
        assert await whole(server, thinking=thinking) == ([thought, text("a")], "end_turn", None)
        script.say("a")
        off = {"type": "disabled"}
        assert await streamed(server, thinking=off) == ([text("a")], "end_turn", None)
