"""Wherever a prompt's pages are, OpenAI's clients are told what the engine's own API tells.

Five ways to ask x fifteen prompts x four states: 300 calls, and not one error.
"""

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from raydix.runtime.api.outputs import RequestOutput
from raydix.runtime.testing.engine import InProcessEngine
from tests.runtime.server.served_engine import MODEL, PAGE_SIZE, Server, serving

NUM_PROMPTS = 15
NUM_TOKENS = 6
CHATS: list[list[Any]] = [
    [{"role": "user", "content": f"Prompt {i} has pages of its own, wherever they are. " * 2}]
    for i in range(NUM_PROMPTS)
]
GREEDY: dict[str, Any] = {
    "model": MODEL,
    "temperature": 0,
    "max_tokens": NUM_TOKENS,
    "extra_body": {"return_token_ids": True},
}
STREAM: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
Told = tuple[Any, int, int, dict[str, int]]
"""Tokens or text, prompt tokens, cached tokens, and prompt tokens by source."""


class State(StrEnum):
    """Where the pages are."""

    COLD = "cold"
    L1 = "l1"
    L2 = "l2"
    L3 = "l3"


async def bring_to(engine: InProcessEngine, state: State) -> None:
    """Move the pages of what has just been computed."""
    await engine.settle()
    match state:
        case State.COLD:
            await engine.flush(l3=True)
        case State.L1:
            pass
        case State.L2:
            await engine.flush_l1()
        case State.L3:
            await engine.flush()


def told(tokens: Any, usage: Any) -> Told:
    details = usage.prompt_tokens_details
    assert usage.completion_tokens == NUM_TOKENS
    return tokens, usage.prompt_tokens, details.cached_tokens, details.cached_tokens_by_source


async def chat_whole(server: Server, chat: Any, _: list[int]) -> Told:
    answer = await server.client().chat.completions.create(messages=chat, **GREEDY)
    return told(answer.choices[0].token_ids, answer.usage)


async def chat_streamed(server: Server, chat: Any, _: list[int]) -> Told:
    stream = await server.client().chat.completions.create(messages=chat, **GREEDY, **STREAM)
    chunks = [chunk async for chunk in stream]
    ids = [i for chunk in chunks for choice in chunk.choices for i in choice.token_ids]
    return told(ids, chunks[-1].usage)


async def completion_by_the_synchronous_client(server: Server, _: Any, ids: list[int]) -> Told:
    create = server.sync_client().completions.create
    answer = await asyncio.to_thread(lambda: create(prompt=ids, **GREEDY))
    return told(answer.choices[0].token_ids, answer.usage)


async def completion_streamed(server: Server, _: Any, ids: list[int]) -> Told:
    stream = await server.client().completions.create(prompt=ids, **GREEDY, **STREAM)
    chunks = [chunk async for chunk in stream]
    new_ids = [i for chunk in chunks for choice in chunk.choices for i in choice.token_ids]
    return told(new_ids, chunks[-1].usage)


async def response_streamed(server: Server, chat: Any, _: list[int]) -> Told:
    stream = await server.client().responses.create(
        model=MODEL, input=chat, max_output_tokens=NUM_TOKENS, temperature=0, stream=True
    )
    events = [event async for event in stream]
    usage = events[-1].response.usage
    details = usage.input_tokens_details
    text = events[-1].response.output_text
    assert usage.output_tokens == NUM_TOKENS
    return text, usage.input_tokens, details.cached_tokens, details.cached_tokens_by_source


WAYS: list[Callable[[Server, Any, list[int]], Awaitable[Told]]] = [
    chat_whole,
    chat_streamed,
    completion_by_the_synchronous_client,
    completion_streamed,
    response_streamed,
]


def expected_of(output: RequestOutput, way: object) -> Told:
    """What the engine's own API told, as that way tells it."""
    new = output.outputs[0]
    return (
        new.text if way is response_streamed else new.token_ids,
        len(output.prompt_token_ids),
        output.num_cached_tokens,
        output.metrics.cached_tokens_by_source,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "state",
    [State.L2, *(pytest.param(each, marks=pytest.mark.part) for each in State if each != State.L2)],
)
async def test_tokens_and_usage_equal_the_engines_own(
    checkpoint: Path, tmp_path: Path, state: State
) -> None:
    cache = {
        "load": "always",
        "l1": {"num_pages": 512},
        "l2": {"bytes_per_node": "32MiB"},
        "l3": {"backend": "file", "path": str(tmp_path / "l3")},
        "prefetch": {"strategy": "wait_complete", "min_tokens": 1},
    }
    async with serving(checkpoint, cache=cache) as server:
        prompts = [await server.llm.apply_chat_template(chat) for chat in CHATS]
        for ids in prompts:
            await server.direct(ids, max_tokens=NUM_TOKENS)

        await bring_to(server.engine, state)
        expected = [await server.direct(ids, max_tokens=NUM_TOKENS) for ids in prompts]
        answers = {}
        for way in WAYS:
            await bring_to(server.engine, state)
            answers[way] = [await way(server, *asked) for asked in zip(CHATS, prompts, strict=True)]

    if state is not State.COLD:
        # Of the page that holds the last token, that one token is computed.
        source = state.value
        cached = [each.metrics.cached_tokens_by_source.get(source, 0) for each in expected]
        assert cached == [(len(ids) - 1) // PAGE_SIZE * PAGE_SIZE for ids in prompts]
    for way, told_by_way in answers.items():
        assert told_by_way == [expected_of(each, way) for each in expected], way


async def test_responses_tell_cached_tokens_too(server: Server) -> None:
    create = server.client().responses.create
    asked: dict[str, Any] = {"model": MODEL, "input": CHATS[0], "max_output_tokens": 4}
    await create(**asked)
    await server.engine.settle()
    usage = (await create(**asked)).usage

    details = usage.input_tokens_details
    assert details.cached_tokens == (usage.input_tokens - 1) // PAGE_SIZE * PAGE_SIZE
    assert details.cached_tokens_by_source["l1"] == details.cached_tokens
    assert sum(details.cached_tokens_by_source.values()) == usage.input_tokens
