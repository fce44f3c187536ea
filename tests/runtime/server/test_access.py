"""Every route x {no key, an unknown one, tenants, monitor, admin}; tenants share nothing."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from raydix.runtime.server.app import build_app
from tests.runtime.server.served_engine import (
    ADMIN,
    ALICE,
    BOB,
    MODEL,
    MONITOR,
    Server,
    engine_keys,
    serving,
)

PROMPT = "A prompt of several pages that both tenants send, word by word the same. " * 2
ROLES = {
    "nobody": None,
    "stranger": "stranger-key-0123456",
    "alice": ALICE,
    "bob": BOB,
    "monitor": MONITOR,
    "admin": ADMIN,
}
TENANTS, WATCHERS = {"alice", "bob"}, {"monitor", "admin"}
KNOWN = TENANTS | WATCHERS
TURNS = [{"role": "user", "content": "a"}]
ROUTES: dict[tuple[str, str], tuple[set[str], Any]] = {
    ("GET", "/health"): (set(ROLES), None),
    ("GET", "/ready"): (KNOWN, None),
    ("GET", "/metrics"): (WATCHERS, None),
    ("GET", "/openapi.json"): (KNOWN, None),
    ("GET", "/v1/models"): (KNOWN, None),
    ("GET", f"/v1/models/{MODEL}"): (KNOWN, None),
    ("POST", "/v1/completions"): (TENANTS, {"prompt": [1, 2, 3], "max_tokens": 1}),
    ("POST", "/v1/chat/completions"): (
        TENANTS,
        {"messages": TURNS, "max_tokens": 1},
    ),
    ("POST", "/v1/responses"): (TENANTS, {"input": "a", "max_output_tokens": 1}),
    ("POST", "/v1/messages"): (TENANTS, {"messages": TURNS, "max_tokens": 1}),
    ("POST", "/v1/messages/count_tokens"): (TENANTS, {"messages": TURNS}),
    ("POST", "/v1/sessions/retention"): (
        TENANTS,
        {"session_id": "s", "retention": {"end": True}},
    ),
    ("POST", "/cache/prefetches"): (TENANTS, {"prompt": "a"}),
    ("GET", "/cache/prefetches/some"): (TENANTS, None),
    ("POST", "/cache/pins"): (TENANTS, {"prompt": "a"}),
    ("GET", "/cache/pins"): (TENANTS, None),
    ("DELETE", "/cache/pins"): (TENANTS, {"prompt": "a"}),
    ("DELETE", "/cache/pins/some"): (TENANTS, None),
    ("POST", "/tokenize"): (TENANTS, {"prompt": "a"}),
    ("POST", "/detokenize"): (TENANTS, {"tokens": [1]}),
    ("GET", "/admin/cache/stats"): ({"admin"}, None),
    ("POST", "/admin/cache/flush"): ({"admin"}, {}),
    ("POST", "/admin/cache/attach"): ({"admin"}, {"l3": {"backend": "fake"}}),
    ("POST", "/admin/cache/detach"): ({"admin"}, None),
    ("GET", "/admin/cache/explain/some"): ({"admin"}, None),
    ("POST", "/admin/sleep"): ({"admin"}, {}),
    ("POST", "/admin/wake"): ({"admin"}, {}),
    ("GET", "/admin/phase"): ({"admin"}, None),
}
"""Who may, and a body that is right."""


@pytest.fixture
async def guarded(checkpoint: Path) -> AsyncIterator[Server]:
    """A server with keys."""
    async with serving(checkpoint, engine_keys()) as server:
        yield server


def route_paths() -> Iterator[tuple[str, str]]:
    """Every route of the application, by its schema."""
    schema = build_app({MODEL: None}, None).openapi()  # type: ignore[dict-item]
    for path, methods in schema["paths"].items():
        for method in methods:
            yield method.upper(), path


def test_the_table_has_every_route() -> None:
    named = {(method, path.replace(MODEL, "{model}")) for method, path in ROUTES}
    named = {(method, path.replace("/pins/some", "/pins/{pin_id}")) for method, path in named}
    named = {(method, path.replace("/some", "/{request_id}")) for method, path in named}
    assert named - {("GET", "/openapi.json")} == set(route_paths())


async def test_each_route_lets_in_those_whom_it_is_for(guarded: Server) -> None:
    wrong = []
    for (method, path), (allowed, body) in ROUTES.items():
        for role, key in ROLES.items():
            async with guarded.http(key) as http:
                status = (await http.request(method, path, json=body)).status_code
            is_in = status not in (401, 403)
            if is_in != (role in allowed):
                wrong.append((method, path, role, status))
            if role not in allowed:
                assert status == (403 if role in KNOWN else 401), (path, role)

    assert wrong == []


async def test_a_key_may_come_in_the_header_that_anthropics_clients_use(guarded: Server) -> None:
    body = {"messages": TURNS, "max_tokens": 1}
    async with guarded.http() as http:
        statuses = [
            (await http.post("/v1/messages", json=body, headers=headers)).status_code
            for headers in ({"X-Api-Key": ALICE}, {"X-Api-Key": MONITOR}, {"X-Api-Key": "none"})
        ]
        both = {"X-Api-Key": "none", "Authorization": f"Bearer {ALICE}"}
        statuses.append((await http.post("/v1/messages", json=body, headers=both)).status_code)
        refused = await http.post("/v1/messages", json=body)
    assert statuses == [200, 403, 401, 200]
    assert refused.status_code == 401
    assert refused.json()["type"] == "error"
    assert refused.json()["error"]["type"] == "authentication_error"


async def test_a_folder_that_is_relative_to_nobody_is_refused(guarded: Server) -> None:
    async with guarded.http(ADMIN) as http:
        section = {"backend": "file", "path": "l3"}
        answer = await http.post("/admin/cache/attach", json={"l3": section})
    assert answer.status_code == 400
    assert "absolute path" in answer.json()["error"]["message"]


async def test_a_path_without_route_needs_a_key_too(guarded: Server) -> None:
    async with guarded.http() as http:
        assert (await http.get("/nothing")).status_code == 401
        assert (await http.get("/health/")).status_code == 401
    async with guarded.http(ADMIN) as http:
        assert (await http.get("/nothing")).status_code == 404


async def test_a_key_is_asked_for_before_the_body_is_read(guarded: Server) -> None:
    async with guarded.http() as http:
        answer = await http.post("/v1/completions", content=b"no JSON at all")
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert answer.json()["error"]["code"] == "invalid_api_key"


async def cached_tokens(server: Server, key: str, **body: Any) -> int:
    """How many tokens of the prompt the caller found cached."""
    async with server.http(key) as http:
        asked = {"prompt": PROMPT, "max_tokens": 1, **body}
        usage = (await http.post("/v1/completions", json=asked)).json()["usage"]
    await server.engine.settle()
    return int(usage["prompt_tokens_details"]["cached_tokens"])


async def test_two_tenants_share_no_cached_token(guarded: Server) -> None:
    assert await cached_tokens(guarded, ALICE) == 0
    assert await cached_tokens(guarded, BOB) == 0
    assert await cached_tokens(guarded, ALICE) > 100
    assert await cached_tokens(guarded, BOB) > 100


async def test_a_salt_divides_within_a_tenant_and_reaches_no_other(guarded: Server) -> None:
    assert await cached_tokens(guarded, ALICE, cache_salt="x") == 0
    assert await cached_tokens(guarded, ALICE) == 0
    assert await cached_tokens(guarded, ALICE, cache_salt="x") > 100
    for salt in ("alice", "alice/", "alice/x", "x", "../alice/x"):
        assert await cached_tokens(guarded, BOB, cache_salt=salt) == 0


async def test_without_keys_the_admin_routes_stay_shut(server: Server) -> None:
    async with server.http() as http:
        answers: list[httpx.Response] = await asyncio.gather(
            http.get("/admin/cache/stats"), http.get("/metrics"), http.get("/v1/models")
        )
    assert [each.status_code for each in answers] == [401, 200, 200]
    assert "Start it with --keys FILE" in answers[0].json()["error"]["message"]


async def test_the_admin_asks_by_the_id_of_an_answer(guarded: Server) -> None:
    generating = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")
    async with guarded.http(ALICE) as http:
        ids = [
            (await http.post(path, json=ROUTES["POST", path][1])).json()["id"]
            for path in generating
        ]
    async with guarded.http(ADMIN) as http:
        answers = [await http.get(f"/admin/cache/explain/{each}") for each in ids]
    assert [each.status_code for each in answers] == [200] * 4


async def test_the_admin_sees_and_empties_the_cache(guarded: Server) -> None:
    await cached_tokens(guarded, ALICE)
    async with guarded.http(ADMIN) as http:
        stats = (await http.get("/admin/cache/stats")).json()
        dropped = (await http.post("/admin/cache/flush", json={})).json()
        missing = await http.get("/admin/cache/explain/none")

    assert stats["scheduler"]["l1_cached_pages"] > 0
    assert dropped["l1_pages"] == stats["scheduler"]["l1_cached_pages"]
    assert missing.status_code == 404
    assert await cached_tokens(guarded, ALICE) == 0
