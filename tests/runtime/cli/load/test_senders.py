"""Senders against a real engine and server in this process: counts and sources are told truly."""

import itertools
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest

from raydix.errors import BadRequest, EngineDead, RaydixError
from raydix.runtime.cli.load.engine_sender import EngineSender
from raydix.runtime.cli.load.http_sender import HttpSender, HttpServer, base_url
from raydix.runtime.cli.load.requests import AnyPrompt, BlockPrompt, ChatPrompt, LoadRequest
from raydix.runtime.cli.load.run import OutputCame, Sender, Usage
from tests.runtime.server.served_engine import ALICE, Server, engine_keys, serving, write_checkpoint

CHAT = ChatPrompt(messages=({"role": "user", "content": "Hello"},))
PROMPTS: list[AnyPrompt] = [
    "Once upon a time",
    [5, 6, 7, 8] * 10,
    BlockPrompt(block_ids=(1, 2), num_tokens=40, block_tokens=32),
    CHAT,
]
NO_SALT = itertools.repeat(None)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("bench"))


@pytest.fixture
async def server(checkpoint: Path) -> AsyncIterator[Server]:
    async with serving(checkpoint) as server:
        yield server


async def ask(sender: Sender, prompt: AnyPrompt, num_tokens: int = 8) -> tuple[int, Usage]:
    """How often output came, and what it took."""
    request = LoadRequest(prompt=prompt, output_tokens=num_tokens)
    news = [each async for each in sender.stream(request)]
    [usage] = [each for each in news if isinstance(each, Usage)]
    return sum(isinstance(each, OutputCame) for each in news), usage


@pytest.mark.parametrize("prompt", PROMPTS, ids=["text", "ids", "blocks", "chat"])
async def test_http_and_the_own_client_tell_the_same(server: Server, prompt: AnyPrompt) -> None:
    async with HttpServer(f"{server.url}/v1", None) as http:
        fields = {"model": await http.first_model(), "ignore_eos": True}
        over_http = HttpSender(http, fields, itertools.repeat("a"))
        direct = EngineSender(server.llm, itertools.repeat("b"))  # type: ignore[arg-type]
        for _ in range(2):
            num_came, told = await ask(over_http, prompt)
            num_direct, expected = await ask(direct, prompt)
            assert told == expected
            assert min(num_came, num_direct) >= 1
            assert told.num_output_tokens == 8
            assert sum(told.tokens_by_source.values()) == told.num_prompt_tokens


@pytest.mark.parametrize("is_http", [False, True])
async def test_each_request_has_the_next_salt(server: Server, is_http: bool) -> None:
    salts = iter(["a", "b", "a"])
    async with HttpServer(f"{server.url}/v1", None) as http:
        sender = HttpSender(http, {}, salts) if is_http else EngineSender(server.llm, salts)  # type: ignore[arg-type]
        usages = [(await ask(sender, [5, 6, 7, 8] * 10))[1] for _ in range(3)]
    assert [each.tokens_by_source.get("l1", 0) for each in usages] == [0, 0, 32]


async def test_a_key_is_sent_and_a_refusal_is_told(checkpoint: Path) -> None:
    async with serving(checkpoint, engine_keys()) as server:
        async with HttpServer(f"{server.url}/v1", ALICE) as http:
            assert (await ask(HttpSender(http, {}, NO_SALT), "Hello"))[1].num_output_tokens == 8
        async with HttpServer(f"{server.url}/v1", "wrong") as http:
            with pytest.raises(BadRequest, match=r"answers 401: .* OPENAI_API_KEY"):
                await ask(HttpSender(http, {}, NO_SALT), "Hello")


async def test_nobody_there_is_told_with_the_address() -> None:
    async with HttpServer("http://127.0.0.1:1/v1", None) as http:
        with pytest.raises(EngineDead, match=r"127\.0\.0\.1:1/v1/models"):
            await http.first_model()
        with pytest.raises(EngineDead, match="ConnectError"):
            await ask(HttpSender(http, {}, NO_SALT), "Hello")


Answer = Callable[[httpx.Request], httpx.Response]


def stream_of(*events: object) -> Answer:
    lines = "".join(f"data: {json.dumps(each)}\n\n" for each in events) + "data: [DONE]\n\n"
    return lambda request: httpx.Response(200, text=lines)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], HttpServer]:
    """A server that answers by a script."""
    client = httpx.AsyncClient

    def make(answer: Answer) -> HttpServer:
        transport = httpx.MockTransport(answer)
        monkeypatch.setattr(httpx, "AsyncClient", lambda **_: client(transport=transport))
        return HttpServer("http://else/v1/", None)

    return make


async def test_a_server_that_tells_cached_tokens_without_a_tier(
    scripted: Callable[[Answer], HttpServer],
) -> None:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    role = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
    word = {"choices": [{"delta": {"content": "Hi"}}]}
    server = scripted(stream_of(role, word, word, {"choices": [], "usage": usage}))
    num_came, told = await ask(HttpSender(server, {}, NO_SALT), CHAT)
    assert num_came == 2
    assert told.tokens_by_source == {"cached": 4, "computed": 6}


async def test_text_with_ends_of_lines_that_json_holds_as_they_are(
    scripted: Callable[[Answer], HttpServer],
) -> None:
    events = [
        {"choices": [{"text": "a\u2028b\u0085c"}]},
        {"choices": None, "usage": {"prompt_tokens": 1, "completion_tokens": 1}},
    ]
    text = "".join(f"data: {json.dumps(each, ensure_ascii=False)}\r\n\r\n" for each in events)
    server = scripted(lambda _: httpx.Response(200, content=text.encode()))
    num_came, told = await ask(HttpSender(server, {}, NO_SALT), "Hello")
    assert (num_came, told.num_output_tokens) == (1, 1)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (stream_of(5), "a chunk is 5"),
        (stream_of({"usage": {"completion_tokens": 1}}), "prompt_tokens"),
        (stream_of({"choices": [{"text": "x"}]}), "told no usage"),
        (stream_of({"error": {"message": "it broke"}}), "it broke"),
        (lambda _: httpx.Response(500, text="oops"), "answers 500: oops"),
        (lambda _: httpx.Response(200, text="data: {\n\n"), "JSONDecodeError"),
    ],
)
async def test_an_answer_that_is_none_fails_the_request(
    scripted: Callable[[Answer], HttpServer], answer: Answer, error: str
) -> None:
    with pytest.raises(RaydixError, match=error):
        await ask(HttpSender(scripted(answer), {}, NO_SALT), "Hello")


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("http://host:8000", "http://host:8000/v1"),
        ("http://host:8000/", "http://host:8000/v1"),
        ("http://host:8000/v1/", "http://host:8000/v1"),
        ("https://host/openai/v3", "https://host/openai/v3"),
    ],
)
def test_a_server_without_a_path_has_openai_s_routes_below_v1(given: str, base: str) -> None:
    assert base_url(given) == base
