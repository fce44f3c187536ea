"""Anthropic's requests: the prompt that they make, its count, and what is refused."""

from typing import Any

import anthropic
import pytest

from tests.runtime.server.scripted_server import ScriptedModel
from tests.runtime.server.served_engine import MODEL, Server
from tests.runtime.server.test_messages import (
    OWN_TOOLS,
    QUESTION,
    TURNS,
    client,
    streamed,
    text,
    whole,
)
from tests.runtime.server.test_tools import TOOLS

EPHEMERAL = {"type": "ephemeral", "ttl": "1h"}
CHAT: list[Any] = [
    {"role": "system", "content": "Be brief.\nBe kind."},
    {"role": "user", "content": QUESTION},
    {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "Hm.",
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "time", "arguments": '{"city": "Bonn"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "Noon.\nSharp."},
    {"role": "user", "content": "And?"},
]
SAME_TURNS: list[Any] = [
    {"role": "user", "content": [{**text(QUESTION), "cache_control": EPHEMERAL}]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "x"},
            {"type": "redacted_thinking", "data": "x"},
            text("I look."),
            {"type": "tool_use", "id": "c1", "name": "time", "input": {"city": "Bonn"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": "c1",
                "content": [text("Noon."), text("Sharp.")],
            },
            text("And?"),
        ],
    },
]
SYSTEM: Any = [
    text("x-anthropic-billing-header: cc_version=2; cch=1f2e3;"),
    text("Be brief."),
    {**text("Be kind."), "cache_control": {"type": "ephemeral"}},
]


async def test_the_prompt_is_that_of_a_chat_and_its_count_too(
    served: tuple[Server, ScriptedModel],
) -> None:
    server, script = served
    script.say("a")
    for options, effort in [({}, {}), ({"effort": "high"}, {"reasoning_effort": "high"})]:
        async with server.http() as http:
            asked = {"messages": CHAT, "tools": TOOLS, **effort}
            expected = (await http.post("/tokenize", json=asked)).json()["count"]
        prompt: Any = {
            "model": MODEL,
            "messages": SAME_TURNS,
            "system": SYSTEM,
            "tools": [{**each, "cache_control": EPHEMERAL} for each in OWN_TOOLS],
            "output_config": options,
        }
        counted = await client(server).messages.count_tokens(**prompt)
        usage = (await client(server).messages.create(**prompt, max_tokens=4)).usage
        told = usage.input_tokens + usage.cache_read_input_tokens
        assert counted.input_tokens == expected == told + usage.cache_creation_input_tokens


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"messages": []}, "messages: "),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages.0.role: Input should be"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages.0.content.0: Input should be a block of type 'text'",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "tool_use", "id": "c", "name": "time", "input": {}},
                        ],
                    }
                ]
            },
            "messages.0.content.0 is no block for the role 'user'",
        ),
        (
            {
                "messages": [
                    *TURNS,
                    {
                        "role": "assistant",
                        "content": [{"type": "tool_use", "id": "c", "name": "time", "input": {}}],
                    },
                ]
            },
            "messages.1 calls a tool and is the last one",
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"name": "f"}]}, "tools.0.input_schema: Field required"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name goes with the type 'tool'"),
        ({"max_tokens": -1}, "max_tokens is -1"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"extra_body": {"stop": ["a"]}}, "stop is no field of messages"),
        ({"extra_body": {"maxtokens": 4}}, "'maxtokens' (did you mean 'max_tokens'?)"),
        ({"messages": [{"role": "user", "content": "a " * 5000}]}, "messages: The prompt has"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(
    served: tuple[Server, ScriptedModel], asked: dict[str, Any], words: str
) -> None:
    for ask in (whole, streamed):
        with pytest.raises(anthropic.BadRequestError) as caught:
            await ask(served[0], **asked)
        error = caught.value.body
        assert set(error) == {"type", "error"}
        assert error["error"]["type"] == "invalid_request_error"
        assert words in error["error"]["message"]


async def test_another_model_is_not_found(served: tuple[Server, ScriptedModel]) -> None:
    with pytest.raises(anthropic.NotFoundError, match="The model 'claude' is not served here"):
        await whole(served[0], model="claude")
    with pytest.raises(anthropic.NotFoundError, match="not_found_error"):
        await client(served[0]).messages.count_tokens(model="claude", messages=TURNS)
