"""Closed connections, refusals for load, long bodies, draining."""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import openai
import pytest

from raydix.errors import EngineDead
from raydix.runtime.server.listener import HttpAddress, listening
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
    scheduler = {"max_running_requests": 1, "max_waiting_requests": 1}
    async with serving(checkpoint, scheduler=scheduler) as server:
        # One runs, one waits; one of several that one HTTP request asks is enough to refuse it.
        with pytest.raises(openai.RateLimitError, match="requests wait") as caught:
            await server.client().completions.create(**LONG, n=8, stream=is_stream)
        figures = await until_idle(server)

    assert int(caught.value.response.headers["Retry-After"]) >= 1
    assert figures.get("generation_tokens", 0) < 230 * 2


async def test_an_error_within_a_stream_is_told_by_an_event(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = server.llm.generate

    async def die(*arguments: Any, **options: Any) -> Any:
        yield await anext(real(*arguments, **options))
        raise EngineDead("The Scheduler is gone.")

    monkeypatch.setattr(server.llm, "generate", die)
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
        real = server.llm.generate

        async def hang(*arguments: Any, **options: Any) -> Any:
            try:
                yield await anext(real(*arguments, **options))
                await asyncio.Event().wait()
            finally:
                has_left.set()

        monkeypatch.setattr(server.llm, "generate", hang)
        stream = await server.client().completions.create(**LONG, stream=True)
        reading = asyncio.create_task(_count(aiter(stream)))

    assert has_left.is_set()
    with pytest.raises(openai.APIConnectionError):
        await reading


async def _count(chunks: Any) -> int:
    return len([chunk async for chunk in chunks])


async def test_a_port_that_is_taken_is_told() -> None:
    async def app(_scope: object, _receive: object, _send: object) -> None: ...

    async with listening(app, HttpAddress("127.0.0.1", 0), 1.0) as url:
        port = int(url.rpartition(":")[2])
        with pytest.raises(Exception, match=f"cannot listen at 127.0.0.1:{port}"):
            async with listening(app, HttpAddress("127.0.0.1", port), 1.0):
                pass


@pytest.mark.parametrize(
    ("text", "host", "is_loopback"),
    [
        ("127.0.0.1:8000", "127.0.0.1", True),
        ("localhost:8000", "localhost", True),
        ("[::1]:8000", "::1", True),
        (":8000", "0.0.0.0", False),
        ("0.0.0.0:8000", "0.0.0.0", False),
        ("somehost:8000", "somehost", False),
        ("[::]:8000", "::", False),
    ],
)
def test_addresses_beyond_loopback_are_known(text: str, host: str, is_loopback: bool) -> None:
    address = HttpAddress.parse(text)
    assert address == HttpAddress(host, 8000)
    assert address.is_loopback == is_loopback


@pytest.mark.parametrize("text", ["", "8000", "host:", "host:http", "host:70000", "host:-1"])
def test_addresses_without_a_port_are_refused(text: str) -> None:
    with pytest.raises(Exception, match="expected HOST:PORT"):
        HttpAddress.parse(text)


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
