"""What browsers are told about scripts of other sites."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from raydix.errors import ConfigError
from raydix.runtime.server.cross_origin import checked_origins
from tests.runtime.server.served_engine import ALICE, MODEL, Server, engine_keys, serving

PAGE = "https://chat.example.org"
QUESTION = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
}
ALLOWED = "access-control-allow-origin"


@pytest.fixture
async def shared(checkpoint: Path) -> AsyncIterator[Server]:
    """A server with keys that pages of one origin may ask."""
    async with serving(checkpoint, engine_keys(), origins=(PAGE,)) as server:
        yield server


async def test_scripts_of_an_allowed_page_may_ask_with_a_key(shared: Server) -> None:
    body = {"prompt": [1, 2], "max_tokens": 2, "stream": True}
    async with shared.http() as http:
        question = await http.options("/v1/completions", headers=QUESTION)
        refused = await http.get("/v1/models", headers={"Origin": PAGE})
    async with shared.http(ALICE) as http:
        answer = await http.post("/v1/completions", json=body, headers={"Origin": PAGE})

    assert question.status_code == 200
    assert (
        question.headers["access-control-allow-headers"]
        == "authorization,content-type,x-stainless-os"
    )
    # An error is for the page to read, too.
    assert [each.headers[ALLOWED] for each in (question, refused, answer)] == [PAGE] * 3
    assert (refused.status_code, answer.status_code) == (401, 200)
    assert answer.text.endswith("data: [DONE]\n\n")


async def test_scripts_of_other_pages_may_not(shared: Server) -> None:
    async with shared.http() as http:
        asked = {**QUESTION, "Origin": "https://other.example.org"}
        question = await http.options("/v1/completions", headers=asked)
        health = await http.get("/health", headers={"Origin": "https://other.example.org"})
    assert question.status_code == 400
    assert ALLOWED not in question.headers
    assert ALLOWED not in health.headers


async def test_without_the_option_no_page_may(server: Server) -> None:
    async with server.http() as http:
        question = await http.options("/v1/completions", headers=QUESTION)
        answer = await http.get(f"/v1/models/{MODEL}", headers={"Origin": PAGE})
    assert question.status_code == 405
    assert ALLOWED not in question.headers
    assert ALLOWED not in answer.headers


def test_what_no_browser_sends_is_refused() -> None:
    right = ("*", PAGE, "http://localhost:3000", "http://[::1]:8080", "app://obsidian.md")
    assert checked_origins(right) == right
    for wrong in (
        "",
        "chat.example.org",
        f"{PAGE}/",
        f"{PAGE}/a",
        "https://A.org",
        "https://*.org",
    ):
        with pytest.raises(ConfigError, match="expected SCHEME://HOST"):
            checked_origins([wrong])
