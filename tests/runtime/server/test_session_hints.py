"""Hints of real clients reach the tiers: with a request, after it, for their own tenant alone."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.server.served_engine import ALICE, BOB, MODEL, Server, engine_keys, serving

PROMPT = "A prompt of several pages that a session of agents begins with, word by word. " * 2


@pytest.fixture
async def server(checkpoint: Path) -> AsyncIterator[Server]:
    """A server with tenants, and an L2."""
    l1 = {"num_pages": 128}
    cache = {"l1": l1, "l2": {"ratio": 2.0}, "retention": {"max_keep_s": 60.0}}
    async with serving(checkpoint, engine_keys(), cache=cache) as served:
        yield served


async def ask(server: Server, key: str, **extra: Any) -> None:
    client = server.client(key)
    await client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=2, extra_body=extra)
    await client.close()


async def kept(server: Server, tier: str) -> list[tuple[str, str]]:
    figures = (await server.llm.stats())["scheduler" if tier == "l1" else "host"]
    return [(each["tenant"], each["session_id"]) for each in figures[f"{tier}_kept"]]


async def test_a_keep_is_shown_for_its_tenant_and_ends_by_a_hint_of_the_same(
    server: Server,
) -> None:
    await ask(server, ALICE, session_id="s", retention={"keep_s": 3600})
    assert await kept(server, "l1") == [("alice", "alice/s")]

    body = {"session_id": "s", "retention": {"end": True}}
    for key, expected in ((BOB, [("alice", "alice/s")]), (ALICE, [])):
        async with server.http(key) as http:
            answer = await http.post("/v1/sessions/retention", json=body)
        assert answer.status_code == 202
        assert await kept(server, "l1") == expected


async def test_a_session_may_be_ended_in_the_words_of_others(server: Server) -> None:
    await ask(server, ALICE, session_id="s", retention={"keep_s": 3600})
    released = {"actions": [{"action_type": "kv.release", "payload": {}}]}
    async with server.http(ALICE) as http:
        answer = await http.post(
            "/v1/sessions/retention", json={"session_id": "s", "kv_hints": released}
        )
    assert answer.status_code == 202
    assert await kept(server, "l1") == []


async def test_the_next_request_of_a_session_ends_its_keep(server: Server) -> None:
    hints = {"actions": [{"action_type": "kv.retain", "payload": {"ttl_s": 30}}]}
    await ask(server, ALICE, session_id="s", kv_hints=hints)
    assert len(await kept(server, "l1")) == 1
    await ask(server, ALICE, session_id="s")
    assert await kept(server, "l1") == []


@pytest.mark.parametrize(
    "retention", [{}, {"end": False}, {"keep_s": -1}, {"keep_s": 1, "end": True}, {"pin": 1}, 5]
)
async def test_a_hint_that_says_nothing_is_a_400(server: Server, retention: Any) -> None:
    async with server.http(ALICE) as http:
        for path, body in (
            ("/v1/sessions/retention", {"session_id": "s", "retention": retention}),
            ("/v1/completions", {"prompt": "a", "max_tokens": 1, "retention": retention}),
        ):
            answer = await http.post(path, json=body)
            assert answer.status_code == 400, (path, answer.text)
            assert "retention" in answer.text
