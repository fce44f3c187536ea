"""Reasoning is told apart: whole and streamed, with tools, in turns, and counted."""

from pathlib import Path
from typing import Any

import openai
import pytest

from tests.runtime.server.scripted_server import (
    HARMONY_TEMPLATE,
    OPENING_TEMPLATE,
    TEMPLATE,
    THINKING_TEMPLATE,
    ScriptedModel,
    scripted_serving,
)
from tests.runtime.server.served_engine import MODEL, PAGE_SIZE, Server, write_checkpoint
from tests.runtime.server.test_tools import ARGUMENTS, CALL, TOOLS

TURNS: list[Any] = [{"role": "user", "content": "Why is the sky blue ☀?"}]
ASKED: dict[str, Any] = {"model": MODEL, "messages": TURNS, "max_tokens": 400}
THOUGHT = "Hm ☀.\nSo."
COUNTED = f"\n{THOUGHT}\n</think>"
HM = f"<think>{COUNTED}\n\n"
Told = tuple[str | None, str | None, int, str]
"""Reasoning, content, the tokens of the first, and the reason of the end."""


async def whole(server: Server, **asked: Any) -> Told:
    answer = await server.client().chat.completions.create(**{**ASKED, **asked})
    [choice] = answer.choices
    message = choice.message.model_dump()
    assert message.get("reasoning") == message.get("reasoning_content")
    counted = answer.usage.completion_tokens_details.reasoning_tokens
    return message.get("reasoning"), message["content"], counted, choice.finish_reason


async def streamed(server: Server, **asked: Any) -> Told:
    stream = await server.client().chat.completions.create(
        **{**ASKED, **asked}, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta.model_dump() for chunk in chunks]
    reasoning = "".join(each.get("reasoning_content") or "" for each in deltas)
    assert reasoning == "".join(each.get("reasoning") or "" for each in deltas)
    content = "".join(each["content"] or "" for each in deltas)
    counted = last.usage.completion_tokens_details.reasoning_tokens
    return reasoning or None, content, counted, chunks[-1].choices[0].finish_reason


async def tokens_of(server: Server, text: str) -> int:
    return len(await server.llm.encode(text))


@pytest.mark.parametrize(
    ("says", "asked", "told", "counted"),
    [
        (f"{HM}Rayleigh.", {}, (THOUGHT, "Rayleigh.", "stop"), COUNTED),
        ("Rayleigh.\n", {}, (None, "Rayleigh.\n", "stop"), ""),
        (f"\n{HM}Light.", {}, (THOUGHT, "Light.", "stop"), COUNTED),
        ("<think>\nHm and hm", {"max_tokens": 12}, ("Hm a", "", "length"), "\nHm a"),
        (f"{HM}a", {"extra_body": {"include_reasoning": False}}, (None, "a", "stop"), COUNTED),
        (f"{HM}a b", {"stop": "b"}, (THOUGHT, "a ", "stop"), COUNTED),
    ],
)
async def test_reasoning_is_told_apart_whole_and_streamed_cold_and_warm(
    served: tuple[Server, ScriptedModel],
    says: str,
    asked: dict[str, Any],
    told: tuple[str | None, str, str],
    counted: str,
) -> None:
    server, script = served
    script.say(says)
    reasoning, content, reason = told
    expected = reasoning, content, await tokens_of(server, counted), reason

    assert await whole(server, **asked) == expected
    await server.engine.settle()
    assert await streamed(server, **asked) == expected
    await server.engine.flush()
    assert await streamed(server, **asked) == expected
    assert await whole(server, **asked) == expected


async def test_a_prompt_may_have_begun_the_reasoning(tmp_path: Path) -> None:
    async with scripted_serving(write_checkpoint(tmp_path), OPENING_TEMPLATE) as (server, script):
        script.say("Hm.\n</think>\n\nRayleigh.")
        counted = await tokens_of(server, "Hm.\n</think>")
        assert await whole(server) == ("Hm.", "Rayleigh.", counted, "stop")
        assert await streamed(server) == ("Hm.", "Rayleigh.", counted, "stop")

        script.say("Rayleigh.")
        switched_off = {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}
        assert await whole(server, **switched_off) == (None, "Rayleigh.", 0, "stop")
        assert await whole(server, reasoning_effort="none") == (None, "Rayleigh.", 0, "stop")
        assert await streamed(server, reasoning_effort="low") == ("Rayleigh.", "", 10, "stop")


@pytest.mark.parametrize(("begun", "is_open"), [("<think>\nHm", True), (f"{HM}Ray", False)])
async def test_a_turn_that_is_gone_on_with_may_have_begun_it(
    served: tuple[Server, ScriptedModel], begun: str, is_open: bool
) -> None:
    server, script = served
    script.say("so</think>a" if is_open else "leigh")
    turns = [*TURNS, {"role": "assistant", "content": begun}]
    options = {"extra_body": {"continue_final_message": True}}
    reasoning, content, _, _ = await whole(server, messages=turns, **options)
    assert (reasoning, content) == (("so", "a") if is_open else (None, "leigh"))


async def test_calls_follow_reasoning_and_its_pages_serve_the_next_turn(
    served: tuple[Server, ScriptedModel],
) -> None:
    server, script = served
    create = server.client().chat.completions.create
    script.say(f"{HM}{CALL}")
    first = await create(**ASKED, tools=TOOLS)
    await server.engine.settle()

    message = first.choices[0].message
    assert (message.content, message.tool_calls[0].function.arguments) == (None, ARGUMENTS)
    for name in ("reasoning_content", "reasoning"):
        said = {
            "role": "assistant",
            "tool_calls": [message.tool_calls[0].model_dump()],
            name: message.reasoning,
        }
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "Sunny."}
        script.say("It is sunny.")
        second = await create(**{**ASKED, "messages": [*TURNS, said, result]}, tools=TOOLS)

        assert second.choices[0].message.content == "It is sunny."
        num_known = first.usage.prompt_tokens + first.usage.completion_tokens - 1
        num_cached = second.usage.prompt_tokens_details.cached_tokens
        assert num_cached >= num_known // PAGE_SIZE * PAGE_SIZE


async def test_channels_of_harmony_are_reasoning_content_and_calls(tmp_path: Path) -> None:
    analysis = "<|channel|>analysis<|message|>Hm.<|end|>"
    call = (
        "<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
        '{"city": "Bonn ☀"}'
    )
    final = "<|start|>assistant<|channel|>final<|message|>It is sunny."
    async with scripted_serving(write_checkpoint(tmp_path), HARMONY_TEMPLATE) as (server, script):
        counted = await tokens_of(server, "Hm.<|end|>")
        script.say(f"{analysis}{final}")
        for asked in ({}, {"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "none"}):
            assert await whole(server, **asked) == ("Hm.", "It is sunny.", counted, "stop")
            assert await streamed(server, **asked) == ("Hm.", "It is sunny.", counted, "stop")

        script.say(f"{analysis}{call}")
        assert await whole(server) == ("Hm.", '{"city": "Bonn ☀"}', counted, "stop")
        assert await whole(server, tools=TOOLS) == ("Hm.", None, counted, "tool_calls")
        assert await streamed(server, tools=TOOLS) == ("Hm.", "", counted, "tool_calls")

        create = server.client().chat.completions.create
        first = await create(**ASKED, tools=TOOLS)
        await server.engine.settle()
        message = first.choices[0].message
        result = {
            "role": "tool",
            "tool_call_id": message.tool_calls[0].id,
            "content": "Sunny.",
        }
        script.say(final.removeprefix("<|start|>assistant"))
        turns = [*TURNS, message.model_dump(exclude_none=True), result]
        second = await create(**{**ASKED, "messages": turns}, tools=TOOLS)
        assert second.choices[0].message.content == "It is sunny."
        num_known = first.usage.prompt_tokens + first.usage.completion_tokens - 1
        num_cached = second.usage.prompt_tokens_details.cached_tokens
        assert num_cached == num_known // PAGE_SIZE * PAGE_SIZE

        turns[-2] = {**turns[-2], "content": "I look."}
        third = await create(**{**ASKED, "messages": turns}, tools=TOOLS)
        assert third.choices[0].message.content == "It is sunny."


async def test_tokenize_is_told_what_a_chat_is_told(served: tuple[Server, ScriptedModel]) -> None:
    server, _ = served
    switched_off = {"enable_thinking": False}
    for options, is_off in [
        ({"reasoning_effort": "high"}, False),
        ({"reasoning_effort": "none"}, True),
        ({"chat_template_kwargs": switched_off}, True),
        ({"chat_template_kwargs": switched_off, "reasoning_effort": "low"}, True),
    ]:
        answer = await server.client().chat.completions.create(**ASKED, extra_body=options)
        async with server.http() as http:
            tokens = (await http.post("/tokenize", json={"messages": TURNS, **options})).json()
        assert tokens["count"] == answer.usage.prompt_tokens
        text = await server.llm.decode(tokens["tokens"])
        assert text.endswith("<think>\n\n</think>\n\n") == is_off
        assert text.count("effort") == ("reasoning_effort" in options)


async def test_an_unknown_effort_is_refused_by_name(served: tuple[Server, ScriptedModel]) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await whole(served[0], reasoning_effort="much")
    assert caught.value.param == "reasoning_effort"
    assert "'none', 'minimal', 'low'" in str(caught.value)


@pytest.mark.parametrize(
    ("template", "options"), [(THINKING_TEMPLATE, {"reasoning_format": "none"}), (TEMPLATE, {})]
)
async def test_reasoning_stays_content_where_no_format_is_known(
    tmp_path: Path, template: str, options: dict[str, str]
) -> None:
    folder = write_checkpoint(tmp_path)
    async with scripted_serving(folder, template, **options) as (server, script):
        script.say(f"{HM}a")
        assert await whole(server) == (None, f"{HM}a", 0, "stop")
        assert await streamed(server) == (None, f"{HM}a", 0, "stop")
    async with scripted_serving(folder, TEMPLATE, reasoning_format="think") as (server, script):
        script.say(f"{HM}a")
        assert (await whole(server))[:2] == (THOUGHT, "a")
