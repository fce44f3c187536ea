"""Prefetches and pins over HTTP: by text, ids or a conversation, for the caller's tenant alone."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from raydix.runtime.api.pins import Pins
from raydix.runtime.api.prefetches import Prefetches
from tests.runtime.server.served_engine import ALICE, BOB, MODEL, Server, engine_keys, serving

PROMPT = "A prompt of several pages that a session of agents begins with, word by word. " * 2


@pytest.fixture
async def server(checkpoint: Path) -> AsyncIterator[Server]:
    """A server with tenants, and an L2."""
    cache = {"l1": {"num_pages": 128}, "l2": {"ratio": 4.0}, "retention": {"max_keep_s": 60.0}}
    async with serving(checkpoint, engine_keys(), cache=cache) as served:
        yield served


async def generate(server: Server, key: str, **extra: Any) -> None:
    client = server.client(key)
    await client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=2, extra_body=extra)
    await client.close()


async def call(server: Server, key: str, method: str, path: str, **body: Any) -> tuple[int, Any]:
    async with server.http(key) as http:
        answer = await http.request(method, path, json=body or None)
    return answer.status_code, answer.json() if answer.content else None


async def test_a_pin_is_shown_and_released_to_its_tenant_alone(server: Server) -> None:
    await generate(server, ALICE)
    await server.engine.settle()
    status, pinned = await call(server, ALICE, "POST", "/cache/pins", prompt=PROMPT, keep_s=9999)
    assert status == 200
    assert pinned["pinned_tokens"] > 0, (pinned, await server.llm.stats())
    assert sum(pinned["tokens_by_source"].values()) >= pinned["pinned_tokens"]

    _, shown = await call(server, ALICE, "GET", "/cache/pins")
    [pin] = shown["pins"]
    assert pin["pin_id"] == pinned["pin_id"]
    assert pin["pinned_tokens"] == pinned["pinned_tokens"]
    assert pin["left_s"] <= 60.0

    path = f"/cache/pins/{pin['pin_id']}"
    assert (await call(server, BOB, "GET", "/cache/pins"))[1] == {"pins": []}
    assert (await call(server, BOB, "DELETE", path))[0] == 404
    assert (await call(server, ALICE, "DELETE", path))[0] == 204
    await server.engine.settle()
    assert (await call(server, ALICE, "GET", "/cache/pins"))[1] == {"pins": []}
    assert (await call(server, ALICE, "DELETE", path))[0] == 404


async def test_a_pin_is_released_by_its_prompt_as_often_as_it_was_made(server: Server) -> None:
    await generate(server, ALICE)
    await server.engine.settle()
    made = []
    for _ in range(2):
        _, pinned = await call(server, ALICE, "POST", "/cache/pins", prompt=PROMPT)
        made.append(pinned["pin_id"])
    path = "/cache/pins"
    assert (await call(server, BOB, "DELETE", path, prompt=PROMPT))[0] == 404
    assert (await call(server, ALICE, "DELETE", path, prompt=PROMPT, cache_salt="x"))[0] == 404
    assert (await call(server, ALICE, "DELETE", path, prompt=PROMPT + "a"))[0] == 404

    _, told = await call(server, ALICE, "POST", "/tokenize", prompt=PROMPT)
    for pin_id, body in zip(made, ({"prompt": PROMPT}, {"token_ids": told["tokens"]}), strict=True):
        status, released = await call(server, ALICE, "DELETE", path, **body)
        assert (status, released["pin_id"]) == (200, pin_id)
        await server.engine.settle()
    assert (await call(server, ALICE, "DELETE", path, prompt=PROMPT))[0] == 404


async def test_nothing_is_pinned_of_what_is_not_there(server: Server) -> None:
    await generate(server, ALICE)
    await server.engine.settle()
    for key, body in (
        (ALICE, {"prompt": "Something else, which nobody has ever asked for here." * 2}),
        (ALICE, {"prompt": PROMPT, "cache_salt": "other"}),
        (BOB, {"prompt": PROMPT}),
    ):
        status, pinned = await call(server, key, "POST", "/cache/pins", **body)
        assert (status, pinned["pin_id"], pinned["pinned_tokens"]) == (200, None, 0)


async def prefetched(server: Server, key: str, **body: Any) -> Any:
    """What is told of a prefetch once it has ended."""
    status, begun = await call(server, key, "POST", "/cache/prefetches", **body)
    assert (status, begun["status"]) == (202, "submitted"), begun
    while True:
        status, shown = await call(server, key, "GET", f"/cache/prefetches/{begun['request_id']}")
        assert (status, shown["request_id"]) == (200, begun["request_id"])
        if shown["status"] != "pending":
            return shown


async def test_a_prompt_may_be_text_ids_or_a_conversation(server: Server) -> None:
    _, told = await call(server, ALICE, "POST", "/tokenize", prompt=PROMPT)
    for body in ({"prompt": PROMPT}, {"token_ids": told["tokens"]}):
        shown = await prefetched(server, ALICE, **body)
        assert sum(shown["tokens_by_source"].values()) == told["count"]
    messages = [{"role": "user", "content": PROMPT}]
    shown = await prefetched(server, ALICE, messages=messages)
    assert sum(shown["tokens_by_source"].values()) > told["count"]


async def test_a_prefetch_is_shown_to_its_tenant_alone(server: Server) -> None:
    await generate(server, ALICE)
    await server.engine.settle()
    shown = await prefetched(server, ALICE, prompt=PROMPT)
    assert (shown["status"], shown["found_keys"]) == ("completed", shown["total_keys"])
    assert shown["total_keys"] > 1

    path = f"/cache/prefetches/{shown['request_id']}"
    for _ in range(2):
        assert await call(server, ALICE, "GET", path) == (200, shown)
    status, others = await call(server, BOB, "GET", path)
    _, unknown = await call(server, BOB, "GET", path.replace("-", "+"))
    assert (status, others["error"]["code"]) == (404, "prefetch_not_found")
    assert unknown["error"]["message"] == others["error"]["message"].replace("-", "+")
    assert (await prefetched(server, BOB, prompt=PROMPT))["found_keys"] == 0


async def test_python_begins_prefetches_and_asks_for_their_state(server: Server) -> None:
    prefetches = Prefetches(server.llm)
    name = await prefetches.begin("A prompt of which nothing is known. " * 3)
    while (state := await prefetches.state(name))["status"] == "pending":
        await asyncio.sleep(0)
    assert (state["status"], state["num_found_pages"]) == ("completed", 0)
    assert await prefetches.state("another") is None


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"prompt": "a", "token_ids": [1]},
        {"token_ids": [-1]},
        {"token_ids": []},
        {"prompt": "a", "model": "another"},
        {"prompt": "a", "world_size": 2},
    ],
)
async def test_a_body_that_names_no_prompt_is_refused(server: Server, body: Any) -> None:
    for path in ("/cache/pins", "/cache/prefetches"):
        status, _ = await call(server, ALICE, "POST", path, **{"cache_salt": "x", **body})
        assert status in (400, 404), (path, body)


@pytest.mark.parametrize("keep_s", [0, -1, "long"])
async def test_a_pin_for_no_time_is_refused(server: Server, keep_s: Any) -> None:
    status, _ = await call(server, ALICE, "POST", "/cache/pins", prompt="a", keep_s=keep_s)
    assert status == 400


async def test_python_has_them_too(server: Server) -> None:
    await generate(server, ALICE)
    await server.engine.settle()
    pins = Pins(server.llm)
    pinned = await pins.add(PROMPT, keep_s=30.0, cache_salt="alice/")
    assert pinned.num_pinned_tokens > 0
    [shown] = await pins.shown()
    assert (shown["pin_id"], shown["tenant"]) == (pinned.pin_id, "alice")
    assert await pins.release(pinned.pin_id)
    await server.engine.settle()
    assert not await pins.release(pinned.pin_id)
    assert await pins.shown() == []
