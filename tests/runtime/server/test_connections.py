"""Closed connections, refusals for load, long bodies, draining."""

import asyncio
import contextlib
import itertools
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from raydix.errors import EngineDead
from raydix.runtime.actors.links.address import TcpAddress
from raydix.runtime.actors.supervision.spawn import ActorKind
from raydix.runtime.api.open_requests import OnNews, OpenRequest
from raydix.runtime.server.listener import listening
from tests.runtime.server.served_engine import MODEL, Server, serving

LONG: dict[str, Any] = {"model": MODEL, "prompt": [5] * 20, "max_tokens": 230, "temperature": 0}


async def until_idle(server: Server) -> dict[str, Any]:
    """The Scheduler's figures once nothing runs."""
    stats = await server.engine.settle()
    return dict(stats["scheduler"])


async def until_running(server: Server) -> None:
    async with asyncio.timeout(20):
        while not (await server.engine.stats())["scheduler"]["num_requests_running"]:
            await asyncio.sleep(0.001)


async def on_first_news(
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    then: Callable[[OpenRequest, OnNews], None],
) -> None:
    """Do this at the first news of each request; who listens is told of no other news."""
    client = await server.llm.connected()
    real = client.open

    def opened(*arguments: Any) -> OpenRequest:
        *before, on_news = arguments
        is_first = itertools.chain([True], itertools.repeat(False))
        request = real(*before, lambda: then(request, on_news) if next(is_first) else None)
        return request

    monkeypatch.setattr(client, "open", opened)


async def test_leaving_a_stream_aborts_its_request(server: Server) -> None:
    stream = await server.client().completions.create(**LONG, stream=True)
    await anext(aiter(stream))
    await stream.close()

    figures = await until_idle(server)
    assert figures["generation_tokens"] < 230


@pytest.mark.parametrize("n", [1, 3])
async def test_a_client_that_goes_before_the_answer_aborts_its_requests(
    server: Server, n: int
) -> None:
    asking = asyncio.create_task(server.client().completions.create(**LONG, n=n))
    await until_running(server)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)

    # A request that goes on to its end counts all of its tokens.
    figures = await until_idle(server)
    assert figures.get("generation_tokens", 0) < 230 * n


async def test_a_stream_that_is_left_while_it_waits_never_runs(checkpoint: Path) -> None:
    async with serving(checkpoint, scheduler={"max_running_requests": 1}) as server:
        client = server.client()
        first = asyncio.create_task(client.completions.create(**LONG))
        await until_running(server)
        second = asyncio.create_task(client.completions.create(**LONG, stream=True))
        async with asyncio.timeout(20):
            while not (await server.engine.stats())["scheduler"]["num_requests_waiting"]:
                await asyncio.sleep(0.001)

        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        answer = await first
        figures = await until_idle(server)

    assert answer.usage.completion_tokens == 230
    assert figures["generation_tokens"] == 230


@pytest.mark.parametrize("is_stream", [False, True])
async def test_refusal_for_load_is_429_whole_and_streamed(
    checkpoint: Path, is_stream: bool
) -> None:
    scheduler = {"max_running_requests": 1, "max_waiting_requests": 2}
    async with serving(checkpoint, scheduler=scheduler) as server:
        first = asyncio.create_task(server.client().completions.create(**LONG, n=2))
        await until_running(server)
        # One runs, one waits; one of several that one HTTP request asks is enough to refuse it.
        with pytest.raises(openai.RateLimitError, match="requests wait") as caught:
            await server.client().completions.create(**LONG, n=2, stream=is_stream)
        await first
        figures = await until_idle(server)

    assert int(caught.value.response.headers["Retry-After"]) >= 1
    assert figures["generation_tokens"] < 230 * 4


async def test_more_choices_than_ever_may_wait_are_no_429(checkpoint: Path) -> None:
    async with serving(checkpoint, scheduler={"max_waiting_requests": 2}) as server:
        with pytest.raises(openai.BadRequestError, match="max_waiting_requests of 3") as caught:
            await server.client().completions.create(**LONG, n=3)
    assert caught.value.param == "n"


async def test_an_error_within_a_stream_is_told_by_an_event(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(request: OpenRequest, on_news: OnNews) -> None:
        request.stream.fail(EngineDead("The Scheduler is gone."))
        on_news()

    await on_first_news(server, monkeypatch, fail)
    client = server.client()
    with pytest.raises(openai.APIError, match="Scheduler is gone"):
        async for _ in await client.completions.create(**LONG, stream=True):
            pass
    with pytest.raises(openai.APIError, match="Scheduler is gone"):
        async for _ in await client.responses.create(model=MODEL, input="a", stream=True):
            pass


async def test_engine_that_is_gone_is_not_ready(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dead() -> Any:
        raise EngineDead("There is no engine.")

    async with server.http() as http:
        before = await http.get("/ready")
        monkeypatch.setattr(server.llm, "limits", dead)
        after, health = await http.get("/ready"), await http.get("/health")

    assert [before.status_code, after.status_code, health.status_code] == [200, 503, 200]
    assert after.headers["Retry-After"] == "5"


async def test_long_bodies_are_refused_told_or_not(server: Server) -> None:
    body = b'{"prompt": "' + b"x" * (9 << 20) + b'"}'
    headers = {"Content-Type": "application/json"}

    async def pieces() -> Any:
        for start in range(0, len(body), 1 << 20):
            yield body[start : start + (1 << 20)]

    async with server.http() as http:
        told = await http.post("/v1/completions", content=body, headers=headers)
        untold = await http.post("/v1/completions", content=pieces(), headers=headers)
    assert (told.status_code, untold.status_code) == (413, 413)


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({}, "The header Content-Type is missing; expected 'application/json'."),
        ({"Content-Type": "text/plain"}, "The header Content-Type is 'text/plain'; expected"),
    ],
)
async def test_a_body_that_is_not_called_json_is_told(
    server: Server, headers: dict[str, str], message: str
) -> None:
    async with server.http() as http:
        answer = await http.post("/v1/completions", content=b'{"prompt": "a"}', headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(message)


async def test_what_is_no_json_is_told(server: Server) -> None:
    headers = {"Content-Type": "application/json; charset=utf-8"}
    async with server.http() as http:
        answers = [
            await http.post("/v1/completions", content=body, headers=headers)
            for body in (b"", b"{", b"\xff", b"[" * 100_000, b'{"prompt": "\\ud800"}')
        ]
    for answer in answers:
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith("The body is no JSON: ")


@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_probes_may_ask_for_the_head_alone(server: Server, path: str) -> None:
    async with server.http() as http:
        answer = await http.head(path)
    assert (answer.status_code, answer.content) == (200, b"")


async def test_requests_are_counted_by_route(server: Server) -> None:
    async with server.http() as http:
        await http.post("/v1/completions", json={"prompt": [1, 2], "max_tokens": 2})
        await http.post("/v1/completions", json={"nothing": 1})
        await http.get("/a/path/of/the/client")
        text = (await http.get("/metrics")).text

    lines = text.splitlines()
    assert 'raydix_http_requests_total{replica="0",route="/v1/responses",status="200"} 0.0' in lines
    assert 'raydix_http_request_seconds_count{replica="0",route="/v1/responses"} 0.0' in lines
    counted = 'raydix_http_requests_total{replica="0",route="/v1/completions",status="'
    assert counted + '200"} 1.0' in lines
    assert counted + '400"} 1.0' in lines
    assert 'raydix_http_requests_total{replica="0",route="none",status="404"} 1.0' in lines
    assert f'raydix_generation_tokens_total{{engine="{server.llm.name}"}} 2.0' in lines


async def test_streams_may_finish_while_the_server_drains(checkpoint: Path) -> None:
    async with serving(checkpoint, drain_s=30.0) as server:
        stream = await server.client().completions.create(**LONG, stream=True)
        chunks = aiter(stream)
        await anext(chunks)
        reading = asyncio.create_task(_count(chunks))
    assert await reading > 0


async def test_streams_that_outlast_the_drain_are_cut_and_aborted(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_left = asyncio.Event()
    async with serving(checkpoint, drain_s=1.0) as server:

        def hang(request: OpenRequest, on_news: OnNews) -> None:
            real = request.close
            monkeypatch.setattr(request, "close", lambda: (real(), has_left.set()))
            on_news()

        await on_first_news(server, monkeypatch, hang)
        stream = await server.client().completions.create(**LONG, stream=True)
        reading = asyncio.create_task(_count(aiter(stream)))

    assert has_left.is_set()
    with pytest.raises(openai.APIConnectionError):
        await reading


async def test_streams_that_outlast_the_drain_of_their_engine_are_told(checkpoint: Path) -> None:
    async with serving(checkpoint, drain_s=30.0, model={"max_model_len": 2048}) as server:
        endless = {**LONG, "max_tokens": 2000, "extra_body": {"ignore_eos": True}}
        stream = await server.client().completions.create(**endless, stream=True)
        chunks = aiter(stream)
        await anext(chunks)
        scheduler = server.engine.spawner.latest(ActorKind.SCHEDULER)
        assert scheduler is not None
        await scheduler.call("drain", 0.01)
        with pytest.raises(openai.APIError, match="was shut down before"):
            await _count(chunks)


async def _count(chunks: Any) -> int:
    return len([chunk async for chunk in chunks])


async def test_a_port_that_is_taken_is_told() -> None:
    async def app(_scope: object, _receive: object, _send: object) -> None: ...

    async with listening(app, TcpAddress("127.0.0.1", 0), 1.0) as url:
        port = int(url.rpartition(":")[2])
        with pytest.raises(Exception, match=f"cannot listen at 127.0.0.1:{port}"):
            async with listening(app, TcpAddress("127.0.0.1", port), 1.0):
                pass


CHUNKED = b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n"


@pytest.mark.parametrize(
    "start",
    [
        *(b"GET /", b"GET / HTTP/1.1\r\nA: ", b"GET / HTTP/1.1\r\n"),
        *(CHUNKED, CHUNKED + b"A: "),
    ],
)
async def test_a_header_or_trailer_without_end_is_refused(server: Server, start: bytes) -> None:
    more = b"B: b\r\n" * 1024 if start.endswith(b"\n") else b"a" * 4096
    port = int(server.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    writer.write(start)
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(20):
            while not reader.at_eof():
                writer.write(more)
                await writer.drain()
                await asyncio.sleep(0)
    writer.close()

    async with server.http() as http:
        assert (await http.get("/health")).status_code == 200


def asking_bytes(**fields: Any) -> bytes:
    """A request as it is sent."""
    body = json.dumps({**LONG, "ignore_eos": True, **fields}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def test_a_client_that_goes_within_its_body_is_no_failure_of_the_server(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    port = int(server.url.rpartition(":")[2])
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(asking_bytes()[:-1])
    writer.close()

    gone = 'raydix_http_requests_total{replica="0",route="/v1/completions",status="499"} 1.0'
    async with server.http() as http, asyncio.timeout(20):
        while gone not in (await http.get("/metrics")).text:
            await asyncio.sleep(0.01)
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_closing_aborts_also_after_a_request_that_came_too_early(
    server: Server, is_stream: bool
) -> None:
    port = int(server.url.rpartition(":")[2])
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(asking_bytes(stream=is_stream) * 2)
    await until_running(server)
    writer.transport.abort()

    figures = await until_idle(server)
    assert figures.get("generation_tokens", 0) < 230


async def test_a_request_that_came_too_early_is_left_to_be_asked_again(server: Server) -> None:
    port = int(server.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(asking_bytes(max_tokens=2) * 3)
    async with asyncio.timeout(20):
        answer = await reader.read()
    assert answer.count(b"HTTP/1.1 200 OK") == 1
    assert b'"completion_tokens":2' in answer
    writer.close()

    figures = await until_idle(server)
    assert figures["generation_tokens"] == 2


async def test_the_client_is_the_one_who_closes_an_idle_connection(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    real, closings_s = loop.call_later, []

    def call_later(delay: float, callback: Any, *arguments: Any, **options: Any) -> Any:
        if "keep_alive" in getattr(callback, "__name__", ""):
            closings_s.append(delay)
        return real(delay, callback, *arguments, **options)

    monkeypatch.setattr(loop, "call_later", call_later)
    async with server.http() as http:
        assert (await http.get("/health")).status_code == 200
    assert closings_s
    # Load balancers keep theirs for up to ten minutes.
    assert min(closings_s) > 600
