"""What is longer than the context is refused everywhere, before it has cost much."""

from typing import Any

import pytest

from tests.runtime.server.served_engine import MODEL, Server

LONG = "7" * (1 << 20)
ROUTES: list[tuple[str, dict[str, Any], str | None]] = [
    ("/v1/completions", {"prompt": LONG}, "prompt"),
    ("/v1/completions", {"prompt": ["hi", LONG, "ho"]}, "prompt.1"),
    ("/v1/completions", {"prompt": LONG, "stream": True}, "prompt"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": ""}] * 300}, "messages"),
    ("/v1/responses", {"input": LONG}, "input"),
    ("/tokenize", {"prompt": LONG}, "prompt"),
    ("/tokenize", {"messages": [{"role": "user", "content": LONG}]}, "messages"),
]


@pytest.mark.parametrize(("route", "body", "param"), ROUTES)
async def test_a_text_longer_than_the_context_is_refused(
    server: Server, route: str, body: dict[str, Any], param: str | None, monkeypatch: Any
) -> None:
    client = await server.llm.connected()
    tokenizer = client.texts.tokenizer
    assert tokenizer is not None
    encoded = tokenizer._encoded

    def short_alone(text: str, with_special: bool) -> list[int]:
        assert len(text) < 1 << 16, "it was tokenised"
        return encoded(text, with_special)

    monkeypatch.setattr(tokenizer, "_encoded", short_alone)
    async with server.http() as http:
        answer = await http.post(route, json={"model": MODEL, **body})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    assert "more than 256 tokens" in error["message"]
    assert client.num_requests == 0


async def test_more_ids_than_the_context_holds_are_not_decoded(server: Server) -> None:
    async with server.http() as http:
        answer = await http.post("/detokenize", json={"tokens": [5] * 257})
    assert answer.status_code == 400
    assert "has 257 ids; expected at most 256" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("route", "field"),
    [("/v1/chat/completions", "messages"), ("/tokenize", "messages"), ("/v1/responses", "input")],
)
@pytest.mark.parametrize("what", ["messages", "parts"])
async def test_too_many_messages_or_parts_are_counted_before_they_are_looked_at(
    server: Server, route: str, field: str, what: str
) -> None:
    # None of them is right, which nobody has seen.
    many: list[Any] = [{"type": 5}] * ((16 << 10) + 1)
    turns = many if what == "messages" else [{"role": "user", "content": many}]
    async with server.http() as http:
        answer = await http.post(route, json={field: turns})
    assert answer.status_code == 400
    assert f"has 16385 {what}; expected at most 16384" in answer.json()["error"]["message"]
