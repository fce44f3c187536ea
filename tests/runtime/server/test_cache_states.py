"""Wherever a prompt's pages are, HTTP tells what the engine's own API tells."""

from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from raydix.runtime.testing.engine import InProcessEngine
from tests.runtime.server.served_engine import MODEL, PAGE_SIZE, Server, serving

PROMPT = "Pages of this prompt may be in any tier; the answer must not depend on that. " * 2
CHAT: list[Any] = [{"role": "user", "content": PROMPT}]
NUM_TOKENS = 10


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


async def ask_all(server: Server, state: State) -> list[tuple[list[int], Any]]:
    """Tokens and usage of each way to ask, the state restored before each."""
    client, sampling = server.client(), {"temperature": 0, "extra_body": {"return_token_ids": True}}
    stream_options: Any = {"stream": True, "stream_options": {"include_usage": True}}

    async def whole(create: Any, **asked: Any) -> tuple[list[int], Any]:
        await bring_to(server.engine, state)
        answer = await create(model=MODEL, max_tokens=NUM_TOKENS, **asked, **sampling)
        return answer.choices[0].token_ids, answer.usage

    async def streamed(create: Any, **asked: Any) -> tuple[list[int], Any]:
        await bring_to(server.engine, state)
        stream = await create(
            model=MODEL, max_tokens=NUM_TOKENS, **asked, **sampling, **stream_options
        )
        chunks = [chunk async for chunk in stream]
        ids = [i for chunk in chunks for choice in chunk.choices for i in choice.token_ids]
        return ids, chunks[-1].usage

    ids = await server.llm.apply_chat_template(CHAT)
    return [
        await whole(client.chat.completions.create, messages=CHAT),
        await streamed(client.chat.completions.create, messages=CHAT),
        await whole(client.completions.create, prompt=ids),
        await streamed(client.completions.create, prompt=ids),
    ]


@pytest.mark.parametrize("state", list(State))
async def test_tokens_and_usage_equal_the_engines_own(
    checkpoint: Path, tmp_path: Path, state: State
) -> None:
    async with serving(
        checkpoint,
        load="always",
        l2={"bytes_per_node": "8MiB"},
        l3={"backend": "file", "path": str(tmp_path / "l3")},
        prefetch={"strategy": "wait_complete", "min_tokens": 1},
    ) as server:
        ids = await server.llm.apply_chat_template(CHAT)
        await server.direct(ids, max_tokens=NUM_TOKENS)
        await bring_to(server.engine, state)
        expected = await server.direct(ids, max_tokens=NUM_TOKENS)
        answers = await ask_all(server, state)

    num_cacheable = (len(ids) - 1) // PAGE_SIZE * PAGE_SIZE
    assert expected.num_cached_tokens == (0 if state is State.COLD else num_cacheable)
    for token_ids, usage in answers:
        details = usage.prompt_tokens_details
        assert token_ids == expected.outputs[0].token_ids
        assert usage.prompt_tokens == len(ids)
        assert usage.completion_tokens == NUM_TOKENS
        assert details.cached_tokens == expected.num_cached_tokens
        assert details.cached_tokens_by_source == expected.metrics.cached_tokens_by_source


async def test_responses_tell_cached_tokens_too(server: Server) -> None:
    create = server.client().responses.create
    asked: dict[str, Any] = {"model": MODEL, "input": PROMPT, "max_output_tokens": 4}
    await create(**asked)
    await server.engine.settle()
    usage = (await create(**asked)).usage

    details = usage.input_tokens_details
    assert details.cached_tokens == (usage.input_tokens - 1) // PAGE_SIZE * PAGE_SIZE
    assert details.cached_tokens_by_source["l1"] == details.cached_tokens
    assert sum(details.cached_tokens_by_source.values()) == usage.input_tokens
